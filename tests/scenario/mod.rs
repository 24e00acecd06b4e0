mod demos;
mod failures;
mod jobs;
mod support;
