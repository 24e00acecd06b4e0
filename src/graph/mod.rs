//! The job graph: vertices, edges, key groups.
