//! The Slurm job that a node runs in.

use std::{
    collections::BTreeMap,
    process::Stdio,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{process::Command, time::timeout};

/// The controller of a large cluster may be busy; nothing waits for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A job, as its environment tells of it.
#[derive(Debug, Clone, Default)]
pub struct Job {
    /// Its id; that of the task, in an array.
    pub id: String,
    /// The id of the array that it belongs to.
    pub array: Option<String>,
    /// The partition.
    pub partition: Option<String>,
    /// The reservation.
    pub reservation: Option<String>,
    /// Who has submitted it.
    pub user: Option<String>,
    /// When it ends, in seconds since the Unix epoch, as new versions of Slurm tell at the start.
    pub end_time_s: Option<u64>,
}

impl Job {
    /// What others see of it: who runs this, where, in which job, and what belongs together.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        let labels = [
            ("launched_by", self.user.as_ref()),
            ("slurm_job_id", Some(&self.id)),
            ("slurm_partition", self.partition.as_ref()),
            ("slurm_reservation", self.reservation.as_ref()),
            ("worker_group_id", self.array.as_ref()),
        ];
        let told = labels.into_iter().filter_map(|(key, value)| Some((key, value.filter(|value| !value.is_empty())?)));
        told.map(|(key, value)| (key.to_owned(), value.clone())).collect()
    }

    /// When it ends by what Slurm knows now; `None` if never.
    pub(super) async fn ends_at(&self) -> Result<Option<SystemTime>, String> {
        Ok(self.ask().await?.map(at_second))
    }

    /// When it ends by what Slurm said at the start.
    pub(super) fn said_to_end_at(&self) -> Option<SystemTime> {
        self.end_time_s.map(at_second)
    }

    /// Seconds since the Unix epoch; none if it has no end.
    async fn ask(&self) -> Result<Option<u64>, String> {
        let mut scontrol = Command::new("scontrol");
        // As seconds: a date without its time zone would be a guess.
        scontrol.args(["show", "job", "--oneliner", &self.id]).env("SLURM_TIME_FORMAT", "%s");
        let asked = scontrol.stdin(Stdio::null()).kill_on_drop(true).output();
        let answer = timeout(ANSWER_WITHIN, asked).await.map_err(|_| format!("no answer within {ANSWER_WITHIN:?}"))?;
        let answer = answer.map_err(|error| format!("scontrol: {error}"))?;
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
            return Err(format!("scontrol show job {}: {said}", self.id));
        }
        end_time(&String::from_utf8_lossy(&answer.stdout))
    }
}

fn at_second(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// `EndTime` of what `scontrol show job` prints.
fn end_time(shown: &str) -> Result<Option<u64>, String> {
    let end = shown.split_whitespace().find_map(|word| word.strip_prefix("EndTime="));
    match end {
        Some("Unknown" | "None" | "N/A") => Ok(None),
        Some(end) => end.parse().map(Some).map_err(|_| format!("EndTime={end} is no number of seconds")),
        None => Err("scontrol shows no EndTime".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_read_from_what_scontrol_shows() {
        let shown = "JobId=2 JobName=j.sh StartTime=1795967836 EndTime=1795967896 Deadline=N/A NodeList=gpu0";
        assert_eq!(end_time(shown), Ok(Some(1_795_967_896)));
        assert_eq!(end_time("JobId=2 EndTime=Unknown"), Ok(None));
        assert!(end_time("JobId=2 EndTime=2026-11-29T15:58:16").unwrap_err().contains("2026-11-29T15:58:16"));
        assert!(end_time("").unwrap_err().contains("no EndTime"));
    }

    #[test]
    fn labels_are_what_is_known() {
        let job = Job { id: "7".into(), user: Some("ann".into()), partition: Some(String::new()), ..Job::default() };
        let labels = [("launched_by", "ann"), ("slurm_job_id", "7")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(job.labels(), BTreeMap::from(labels));
    }
}
