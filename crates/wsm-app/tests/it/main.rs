//! The application from the outside.

mod support;

mod admin;
mod embedding;
mod exec;
mod files;
mod lifecycle;
mod openapi;
mod problems;
mod sessions;
