//! What `scontrol` prints, and how Slurm writes times, signals and lists.

use std::time::Duration;

/// Slurm's own, where `--signal` names no time.
const SIGNAL_BEFORE: Duration = Duration::from_secs(60);

/// What `scontrol` says of a job and of its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Told {
    pub(super) ran: Option<Duration>,
    pub(super) limit: Option<Duration>,
    pub(super) is_unlimited: bool,
    /// Between SIGTERM and SIGKILL.
    pub(super) kill_wait: Option<Duration>,
    /// The signal that the job asks for before its end.
    pub(super) signal: Option<Signal>,
}

/// A signal before the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signal {
    pub(super) before: Duration,
}

impl Told {
    /// From `show job -o`, `show config` and the job's script, each of which may be empty.
    pub(super) fn of(job: &str, config: &str, script: &str) -> Self {
        let field = |name: &str| job.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let kill_wait = config.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == "KillWait").then(|| value.split_whitespace().next()?.parse().ok()).flatten()
        });
        // Newer Slurm tells the command line; it wins over the script. Whatever follows `SubmitLine=` in the line of a job
        // may be it.
        let submitted = job.split_once("SubmitLine=").and_then(|(_, line)| signal_in(line.split_whitespace()));
        let lines = script.lines().filter_map(|line| line.trim_start().strip_prefix("#SBATCH"));
        let written = lines.filter_map(|line| signal_in(line.split_whitespace())).next_back();
        Self {
            ran: field("RunTime").and_then(time),
            limit: field("TimeLimit").and_then(time),
            is_unlimited: field("TimeLimit") == Some("UNLIMITED"),
            kill_wait: kill_wait.map(Duration::from_secs),
            signal: submitted.or(written),
        }
    }
}

/// `[D-]HH:MM:SS`.
fn time(text: &str) -> Option<Duration> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds: u64 = 0;
    for part in clock.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    Some(Duration::from_secs(days.parse::<u64>().ok()?.checked_mul(86_400)?.checked_add(seconds)?))
}

/// `--signal=[R][B]:USR1@120`, in one word or two.
fn signal_in<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Signal> {
    let value = loop {
        let word = words.next()?;
        match word.strip_prefix("--signal") {
            Some("") => break words.next()?,
            Some(value) => break value.strip_prefix('=')?,
            None => {}
        }
    };
    let before = value
        .trim_matches(['"', '\''])
        .split_once('@')
        .map_or(Some(SIGNAL_BEFORE), |(_, seconds)| Some(Duration::from_secs(seconds.parse().ok()?)));
    Some(Signal { before: before? })
}

/// An element of a list such as `2(x3),1`.
pub(super) fn nth_of(list: &str, nth: usize) -> Option<u32> {
    let mut passed = 0_usize;
    for element in list.split(',') {
        let (value, times) = element.trim().trim_end_matches(')').split_once("(x").unwrap_or((element.trim(), "1"));
        passed = passed.checked_add(times.parse().ok()?)?;
        if nth < passed {
            return value.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scontrol_prints_is_understood() {
        let job = "JobId=7 JobName=x RunTime=00:01:40 TimeLimit=1-02:00:00 TimeMin=N/A SubmitLine=sbatch --signal=B:USR1@300 x.sh";
        let config = "KillOnBadExit           = 0\nKillWait                = 30 sec\n";
        let script = "#!/bin/bash\n#SBATCH --time=1 --signal USR2\n";
        let told = Told::of(job, config, script);
        assert_eq!(told.ran, Some(Duration::from_secs(100)));
        assert_eq!(told.limit, Some(Duration::from_secs(93_600)));
        assert_eq!(told.kill_wait, Some(Duration::from_secs(30)));
        assert_eq!(told.signal, Some(Signal { before: Duration::from_secs(300) }));
        assert_eq!(Told::of("", "", script).signal, Some(Signal { before: SIGNAL_BEFORE }));
        assert!(Told::of("TimeLimit=UNLIMITED", "", "").is_unlimited);
        let nothing = "TimeLimit=Partition_Limit RunTime=soon";
        assert_eq!(Told::of(nothing, "KillWait", "#SBATCH --signal"), Told::default());
    }

    #[test]
    fn lists_are_counted_out() {
        for (list, nth, value) in
            [("2(x3),1", 2, Some(2)), ("2(x3),1", 3, Some(1)), ("2(x3),1", 4, None), ("7", 0, Some(7)), ("", 0, None)]
        {
            assert_eq!(nth_of(list, nth), value, "{list} {nth}");
        }
    }
}
