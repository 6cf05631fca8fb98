//! Whole-system tests: real processes on loopback, from `otela start --process …` to a client's bytes.

#![expect(clippy::unwrap_used, reason = "tests")]

mod admission;
mod churn;
mod cli;
mod config;
mod doctor;
mod faults;
mod ghosts;
mod join;
mod lab;
mod life;
mod metrics;
mod nat;
mod probe;
mod provider;
mod proxies;
mod registry;
mod streaming;
mod support;
mod surface;
