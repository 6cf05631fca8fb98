//! Whole-system tests: real processes on loopback, from `otela start --process …` to a client's bytes.

#![expect(clippy::unwrap_used, reason = "tests")]

/// Each of these tests twice: with the nodes behind a relay, and in the soak beside the ingress too, where those of all other
/// tests are.
macro_rules! each_way {
    ($($test:ident),* $(,)?) => {$(
        mod $test {
            #[tokio::test]
            async fn relayed() {
                super::$test(crate::support::Way::Relayed).await;
            }

            #[tokio::test]
            async fn soak_direct() {
                super::$test(crate::support::Way::Direct).await;
            }
        }
    )*};
}

mod admission;
mod anthropic;
mod assign;
mod balancers;
mod churn;
mod cli;
mod config;
mod doctor;
mod faults;
mod ghosts;
mod https;
mod jobs;
mod join;
mod lab;
mod life;
mod manifests;
mod metrics;
mod nat;
mod openapi;
mod overload;
mod probe;
mod process;
mod profile;
mod provider;
mod proxies;
mod registry;
mod reload;
mod resume;
mod routes;
mod sched;
mod slurm;
mod slurm_jobs;
mod streaming;
mod supervise;
mod support;
mod surface;
mod traces;
mod trust;
mod wire;
