//! The page for people, over HTTP and in a real browser.

#![allow(clippy::unwrap_used, reason = "tests")]

mod browser;
mod budgets;
mod bulk;
mod damaged;
mod driver;
mod fences;
mod health;
mod hidden;
mod items;
mod jobs;
mod live;
mod orders;
mod plain;
mod rows;
mod scene;
mod session;
mod stage;
mod throughput;
