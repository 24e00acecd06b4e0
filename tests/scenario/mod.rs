mod drivers;
mod jobs;
