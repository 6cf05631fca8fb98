//! The time for which a node has its machine: told to the mesh, and used to the end but no longer.
//!
//! A batch system ends a job at its time limit, whatever runs. The node therefore drains so long before that what runs can
//! finish, and others are told by `ends_at` when to be ready in its place.

mod slurm;

pub use slurm::Job;

use super::{ending::Ending, voice::Voice};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep};

/// The label that tells the end, for tools that read labels.
const EXPIRES_LABEL: &str = "expires_at";
/// A limit can be changed while a job runs.
const ASKED_EVERY: Duration = Duration::from_mins(1);
/// Between the end of the last request and that of the allocation, besides what the engine may take to end: to leave.
const TO_LEAVE: Duration = Duration::from_secs(5);
/// The margin is at most this part of what is left at the start: a short job shall serve too.
const MARGIN_PART: u32 = 4;

/// For how long this node has its machine, as far as it can know.
#[derive(Debug, Clone)]
pub struct Allocation {
    /// The Slurm job that it runs in.
    pub job: Option<Job>,
    /// When it ends, if it was told; it is not asked for then.
    pub ends_at: Option<SystemTime>,
    /// So long before the end it takes no new requests.
    pub margin: Duration,
}

impl Default for Allocation {
    fn default() -> Self {
        Self { job: None, ends_at: None, margin: Duration::from_mins(2) }
    }
}

impl Allocation {
    /// Tells the mesh when it ends, and drains the node in time. `stop_grace` is what its engine may take to end.
    pub(super) async fn follow(self, voice: Voice, ending: Ending, stop_grace: Duration) {
        let reserve = stop_grace + TO_LEAVE;
        let (mut known, mut margin, mut is_unknown) = (None, None, false);
        loop {
            let Some(ends_at) = self.ends_at(&mut is_unknown).await else {
                if self.job.is_none() {
                    return;
                }
                sleep(ASKED_EVERY).await;
                continue;
            };
            let left = ends_at.duration_since(SystemTime::now()).unwrap_or_default();
            if known != Some(ends_at) {
                known = Some(ends_at);
                ending.allocated_until(Some(Instant::now() + left.saturating_sub(reserve)));
                let text = humantime::format_rfc3339_seconds(ends_at).to_string();
                tracing::info!(ends_at = text, "this node's allocation ends in {}", whole_seconds(left));
                voice
                    .say(|said| {
                        said.ends_at_ms = Some(unix_ms(ends_at));
                        said.labels.insert(EXPIRES_LABEL.to_owned(), text);
                    })
                    .await;
            }
            let margin = *margin.get_or_insert_with(|| (self.margin + reserve).min(left / MARGIN_PART));
            let left_to_serve = left.saturating_sub(margin);
            if left_to_serve.is_zero() {
                tracing::info!("this node's allocation ends in {}: it takes no new requests", whole_seconds(left));
                ending.drain_before_the_end();
                return;
            }
            sleep(left_to_serve.min(ASKED_EVERY)).await;
        }
    }

    /// When it ends. That a job's end is not to be had is said once, which `is_unknown` remembers.
    async fn ends_at(&self, is_unknown: &mut bool) -> Option<SystemTime> {
        let job = match (self.ends_at, &self.job) {
            (Some(told), _) => return Some(told),
            (None, None) => return None,
            (None, Some(job)) => job,
        };
        job.ends_at().await.unwrap_or_else(|why| {
            if !std::mem::replace(is_unknown, true) {
                tracing::warn!(job = job.id, "Slurm does not tell when this job ends: {why}");
            }
            job.said_to_end_at()
        })
    }
}

fn whole_seconds(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(duration.as_secs()))
}

fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
