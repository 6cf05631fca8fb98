//! Whole-system tests: real processes on loopback, from `otela start --process …` to a client's bytes.

mod cli;
mod faults;
mod lab;
mod life;
mod streaming;
mod support;
mod surface;
