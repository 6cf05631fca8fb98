//! The Slurm job that a node is to run in: when it ends, how it ends, and how often it would start a node here.

mod scontrol;

use super::finding::Finding;
use crate::cli::JobArgs;
use otela_node::agent::hardware::{ToolError, run};
use scontrol::{Signal, Told};
use std::{
    path::Path,
    time::{Duration, SystemTime},
};

const CHECK: &str = "slurm";
/// A model is hardly loaded by then.
const SOON: Duration = Duration::from_secs(600);

/// What is known of the job.
#[derive(Debug)]
pub(super) struct Facts {
    job: JobArgs,
    /// What `scontrol` says, or why it says nothing.
    told: Result<Told, ToolError>,
    now: SystemTime,
    /// How long a node takes to stop, at most: its requests, then its engine.
    stop: Duration,
}

/// Asks `scontrol`, if this is a job; at most for `limit`.
pub(super) async fn read(scontrol: &Path, job: &JobArgs, stop: Duration, limit: Duration) -> Option<Facts> {
    let id = Some(job.slurm_job_id.trim()).filter(|id| !id.is_empty())?;
    let (shown, config, script) = (["show", "job", "-o", id], ["show", "config"], ["write", "batch_script", id, "-"]);
    let (shown, config, script) =
        tokio::join!(run(scontrol, &shown, limit), run(scontrol, &config, limit), run(scontrol, &script, limit));
    // Only who has sent the job may read its script, and some jobs have none.
    let told = shown.map(|shown| Told::of(&shown, &config.unwrap_or_default(), &script.unwrap_or_default()));
    Some(Facts { job: job.clone(), told, now: SystemTime::now(), stop })
}

/// What is to be said of it.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![of_end(facts)];
    if let Err(error) = &facts.told {
        let advice = "in a container bind scontrol, /etc/slurm and munge's socket into it; without it the job's end and \
                      KillWait are known from the environment only";
        // What it says of its failure is often on the other stream.
        let error = error.to_string();
        findings.push(Finding::note(CHECK, format!("scontrol: {}", error.trim_end_matches([':', ' '])), advice));
    }
    findings.extend(facts.told.as_ref().ok().and_then(|told| of_kill(told, facts.stop)));
    findings.extend(of_tasks(&facts.job));
    findings
}

/// How long the job goes on; `None` if nobody tells.
fn left(facts: &Facts) -> Option<Duration> {
    let told = facts.told.as_ref().ok();
    if told.is_some_and(|told| told.is_unlimited) {
        return None;
    }
    let by_environment = || {
        let end = SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_secs(facts.job.slurm_job_end_time.trim().parse().ok()?))?;
        Some(end.duration_since(facts.now).unwrap_or_default())
    };
    // The limit may have been changed since the job began.
    told.and_then(|told| told.limit?.checked_sub(told.ran?).or(Some(Duration::ZERO))).or_else(by_environment)
}

fn of_end(facts: &Facts) -> Finding {
    let JobArgs { slurm_job_id, slurm_job_partition, .. } = &facts.job;
    let place = match slurm_job_partition.as_str() {
        "" => String::new(),
        partition => format!(" in {partition}"),
    };
    match left(facts) {
        None if facts.told.as_ref().is_ok_and(|told| told.is_unlimited) => {
            Finding::ok(CHECK, format!("job {slurm_job_id}{place} has no time limit"))
        }
        None => Finding::ok(CHECK, format!("job {slurm_job_id}{place}; nobody tells when it ends")),
        Some(left) => {
            let says = format!("job {slurm_job_id}{place} ends in {}", humantime::format_duration(whole_seconds(left)));
            if left >= SOON {
                return Finding::ok(CHECK, says);
            }
            let advice = "submit the next job now, and ask for more with --time: models take minutes to load";
            Finding::warn(CHECK, says, advice)
        }
    }
}

fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

/// At its end a job gets SIGTERM, and SIGKILL after KillWait.
fn of_kill(told: &Told, stop: Duration) -> Option<Finding> {
    let wait = told.kill_wait?;
    let shown = |time: Duration| humantime::format_duration(time).to_string();
    let (wait_s, stop_s) = (shown(wait), shown(stop));
    if wait >= stop {
        return Some(Finding::ok(
            CHECK,
            format!("a job that is cancelled is killed after {wait_s}, and a node stops within {stop_s}"),
        ));
    }
    let says =
        format!("a job that is cancelled is killed after {wait_s} (KillWait), and a node takes up to {stop_s} to stop");
    let advice = format!(
        "have the signal earlier, #SBATCH --signal=B:TERM@{}, and pass it on to otela (trap, or exec otela); or shorten \
         --drain and --stop-grace",
        (stop + Duration::from_secs(30)).as_secs()
    );
    Some(match told.signal {
        Some(Signal { before, .. }) if before >= stop => {
            Finding::ok(CHECK, format!("{says}; --signal asks for a signal {} earlier", shown(before)))
        }
        Some(Signal { before, .. }) => {
            Finding::warn(CHECK, format!("{says}; --signal asks for one {} earlier only", shown(before)), advice)
        }
        None => Finding::warn(
            CHECK,
            format!("{says}; the job does not ask for an earlier --signal, as far as is known"),
            advice,
        ),
    })
}

fn of_tasks(job: &JobArgs) -> Option<Finding> {
    let nth = job.slurm_nodeid.trim().parse().unwrap_or(0);
    let tasks = scontrol::nth_of(&job.slurm_step_tasks_per_node, nth).filter(|tasks| *tasks > 1)?;
    let says = format!("this step runs {tasks} tasks on this machine, and each would start a node with an engine");
    let advice = "run otela start once for each machine: srun --ntasks-per-node=1";
    Some(Finding::warn(CHECK, says, advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    fn facts(told: Result<Told, ToolError>) -> Facts {
        let job = JobArgs {
            slurm_job_id: "4711".to_owned(),
            slurm_job_partition: "gpu".to_owned(),
            slurm_job_end_time: "1000000".to_owned(),
            ..JobArgs::default()
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - 3_600);
        Facts { job, told, now, stop: Duration::from_secs(25) }
    }

    fn told(limit_s: u64, kill_wait_s: u64, signal_s: Option<u64>) -> Told {
        Told {
            ran: Some(Duration::from_secs(100)),
            limit: Some(Duration::from_secs(limit_s)),
            is_unlimited: false,
            kill_wait: Some(Duration::from_secs(kill_wait_s)),
            signal: signal_s.map(|before| Signal { before: Duration::from_secs(before) }),
        }
    }

    #[test]
    fn a_job_that_ends_soon_is_told() {
        let end = |facts: &Facts| of_end(facts);
        let by_tool = end(&facts(Ok(told(700, 30, None))));
        assert_eq!((by_tool.verdict, by_tool.says.as_str()), (Verdict::Ok, "job 4711 in gpu ends in 10m"));
        let soon = end(&facts(Ok(told(699, 30, None))));
        assert!(
            soon.verdict == Verdict::Warn && soon.says.ends_with("9m 59s") && soon.advice.unwrap().contains("--time")
        );
        assert!(end(&facts(Ok(told(50, 30, None)))).says.ends_with("ends in 0s"), "over, and not yet killed");
        let by_environment = end(&facts(Err(ToolError::Missing)));
        assert!(by_environment.verdict == Verdict::Ok && by_environment.says.ends_with("ends in 1h"));
        let mut unknown = facts(Err(ToolError::Missing));
        unknown.job.slurm_job_end_time = String::new();
        assert!(end(&unknown).says.contains("nobody tells"));
        unknown.told = Ok(Told { is_unlimited: true, limit: None, ..told(1, 1, None) });
        assert!(end(&unknown).says.contains("no time limit"));
        assert!(judge(&facts(Err(ToolError::Missing))).iter().any(|found| found.says.contains("not installed")));
    }

    #[test]
    fn a_job_that_is_killed_before_its_node_has_stopped_is_told() {
        let kill =
            |kill_wait_s, signal_s| of_kill(&told(9_000, kill_wait_s, signal_s), Duration::from_secs(25)).unwrap();
        assert_eq!(kill(30, None).verdict, Verdict::Ok);
        let short = kill(5, None);
        assert!(short.verdict == Verdict::Warn && short.says.contains("after 5s") && short.says.contains("up to 25s"));
        assert!(short.advice.unwrap().contains("--signal=B:TERM@55"));
        assert_eq!(kill(5, Some(120)).verdict, Verdict::Ok);
        assert!(kill(5, Some(10)).verdict == Verdict::Warn && kill(5, Some(10)).says.contains("10s earlier only"));
        assert!(of_kill(&Told { kill_wait: None, ..told(1, 1, None) }, Duration::ZERO).is_none());
    }

    #[test]
    fn several_tasks_on_one_machine_are_told() {
        let tasks = |list: &str, nth: &str| {
            let job = JobArgs {
                slurm_step_tasks_per_node: list.to_owned(),
                slurm_nodeid: nth.to_owned(),
                ..JobArgs::default()
            };
            of_tasks(&job).map(|finding| finding.says)
        };
        assert!(tasks("4(x2)", "1").unwrap().contains("4 tasks"));
        for (list, nth) in [("1(x2)", "1"), ("4,1", "1"), ("", ""), ("nonsense", "0")] {
            assert_eq!(tasks(list, nth), None, "{list}");
        }
        assert!(tasks("4,1", "").is_some());
    }
}
