//! What this process and its children may take: processors, memory, threads, memory that stays in place, core files.

mod cgroup;

use super::finding::Finding;
use crate::cli::JobArgs;
use procfs::Current;
use rustix::process::{Resource, getrlimit};
use std::path::Path;

const MIB: u64 = 1024 * 1024;
/// Weights pass through main memory on their way to an accelerator, and the engine itself takes some.
const MEMORY_BYTES: u64 = 8 * 1024 * MIB;
/// An engine starts hundreds of threads for each accelerator; many engines share one user.
const THREADS: u64 = 4_096;
/// RDMA pins whole buffers.
const LOCKED_BYTES: u64 = 1024 * MIB;

/// What is known of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Processors that this process may run on.
    cpus: Option<u64>,
    /// What the control groups around us allow.
    memory_bytes: Option<u64>,
    /// What the machine has.
    machine_bytes: u64,
    /// Threads of this user; `None` is any number, here and below.
    threads: Option<u64>,
    locked_bytes: Option<u64>,
    core_bytes: Option<u64>,
    /// Where core files go.
    core_pattern: String,
    has_rdma: bool,
    /// Accelerators that a node here would show.
    accelerators: u64,
    job: JobArgs,
}

/// Looks at this process.
pub(super) fn read(job: &JobArgs, accelerators: usize) -> Facts {
    let status = procfs::process::Process::myself().and_then(|own| own.status()).ok();
    let ranges = status.and_then(|status| status.cpus_allowed_list);
    let cpus = ranges.map(|ranges| ranges.iter().map(|(from, to)| u64::from(to - from) + 1).sum());
    let root = Path::new("/sys/fs/cgroup");
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = |of| getrlimit(of).current;
    Facts {
        cpus,
        memory_bytes: cgroup::memory_limit(&groups, root),
        machine_bytes: procfs::Meminfo::current().map_or(0, |memory| memory.mem_total),
        threads: limit(Resource::Nproc),
        locked_bytes: limit(Resource::Memlock),
        core_bytes: limit(Resource::Core),
        core_pattern: std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default(),
        has_rdma: std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()),
        accelerators: accelerators as u64,
        job: job.clone(),
    }
}

/// What is to be said of them.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    of_cpus(facts).into_iter().chain(of_memory(facts)).chain(of_limits(facts)).collect()
}

fn of_cpus(facts: &Facts) -> Option<Finding> {
    let check = "cpus";
    let (cpus, wanted) = (facts.cpus?, 2 + facts.accelerators);
    let given = facts.job.slurm_cpus_on_node.trim().parse().ok().filter(|given: &u64| *given > cpus);
    Some(match given {
        Some(given) => Finding::warn(
            check,
            format!("{cpus} may be used here, and the job has {given}"),
            "srun does not pass sbatch's --cpus-per-task on: give it to srun too, or export SRUN_CPUS_PER_TASK",
        ),
        None if facts.accelerators > 0 && cpus < wanted => Finding::warn(
            check,
            format!("{cpus} may be used: an engine keeps one busy for each accelerator and two more, so {wanted}"),
            "ask for more, with --cpus-per-task or --cpus-per-gpu",
        ),
        None => Finding::ok(check, format!("{cpus} may be used")),
    })
}

/// What the job was given, in bytes; none if all of the machine.
fn asked_bytes(job: &JobArgs) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number > 0);
    let by_cpu = || number(&job.slurm_mem_per_cpu)?.checked_mul(number(&job.slurm_cpus_on_node)?);
    number(&job.slurm_mem_per_node).or_else(by_cpu)?.checked_mul(MIB)
}

fn of_memory(facts: &Facts) -> Option<Finding> {
    let check = "memory";
    let (asked, limit) = (asked_bytes(&facts.job), facts.memory_bytes.filter(|limit| *limit < facts.machine_bytes));
    let bytes = asked.into_iter().chain(limit).chain([facts.machine_bytes]).min().filter(|bytes| *bytes > 0)?;
    let mib = bytes / MIB;
    Some(match (asked, limit) {
        // Rounded to pages and the like.
        (Some(asked), Some(limit)) if limit < asked / 100 * 98 => Finding::warn(
            check,
            format!("{mib} MiB may be used here (control group), and the job has {} MiB", asked / MIB),
            "give this step all of it, srun --mem=0, or the container no limit of its own",
        ),
        _ if facts.accelerators > 0 && bytes < MEMORY_BYTES => Finding::warn(
            check,
            format!("{mib} MiB may be used; what needs more is killed, and weights pass through it"),
            "ask for more, with --mem or --mem-per-gpu; outside of Slurm, raise the container's limit",
        ),
        (Some(_), None) => Finding::ok(check, format!("{mib} MiB are the job's, by Slurm's count alone")),
        (_, Some(_)) => Finding::ok(check, format!("{mib} MiB may be used (control group)")),
        (None, None) => Finding::ok(check, format!("{mib} MiB, all of this machine's")),
    })
}

fn of_limits(facts: &Facts) -> Vec<Finding> {
    let check = "limits";
    let mut findings = Vec::new();
    if let Some(threads) = facts.threads.filter(|threads| *threads < THREADS) {
        let advice = format!(
            "ulimit -u {THREADS} before the start, or have the hard limit raised (limits.conf, TasksMax= in a unit)"
        );
        findings.push(Finding::warn(
            check,
            format!("this user may have {threads} threads, an engine starts hundreds"),
            advice,
        ));
    }
    if let Some(bytes) = facts.locked_bytes.filter(|bytes| facts.has_rdma && *bytes < LOCKED_BYTES) {
        let says =
            format!("{} KiB may be locked, and InfiniBand pins more: NCCL falls back to TCP or fails", bytes / 1024);
        let advice = "ulimit -l unlimited before the start; in Slurm PropagateResourceLimitsExcept=MEMLOCK, in a container \
                      --ulimit memlock=-1";
        findings.push(Finding::warn(check, says, advice));
    }
    let is_file = !facts.core_pattern.trim().is_empty() && !facts.core_pattern.starts_with('|');
    if is_file && facts.accelerators > 0 && facts.core_bytes.is_none_or(|bytes| bytes > 0) {
        let says = format!("an engine that crashes writes its whole memory to {}", facts.core_pattern.trim());
        findings.push(Finding::warn(check, says, "ulimit -c 0 before the start, unless you want to read it"));
    }
    if findings.is_empty() {
        let shown = facts.threads.map_or_else(|| "any number of".to_owned(), |threads| threads.to_string());
        findings.push(Finding::ok(check, format!("this user may have {shown} threads")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    const GIB: u64 = 1024 * MIB;

    fn job(cpus: &str, mem_per_node: &str, mem_per_cpu: &str) -> JobArgs {
        JobArgs {
            slurm_cpus_on_node: cpus.to_owned(),
            slurm_mem_per_node: mem_per_node.to_owned(),
            slurm_mem_per_cpu: mem_per_cpu.to_owned(),
            ..JobArgs::default()
        }
    }

    fn facts(job: JobArgs) -> Facts {
        Facts {
            cpus: Some(8),
            machine_bytes: 512 * GIB,
            core_bytes: Some(0),
            core_pattern: "core\n".to_owned(),
            accelerators: 4,
            job,
            ..Facts::default()
        }
    }

    #[test]
    fn processors_are_held_against_the_job_and_the_accelerators() {
        let cpus = |facts: &Facts| of_cpus(facts).unwrap();
        assert_eq!(cpus(&facts(job("8", "", ""))).verdict, Verdict::Ok);
        assert_eq!(cpus(&facts(job("4", "", ""))).verdict, Verdict::Ok, "nobody holds us to them");
        let fewer = cpus(&facts(job("16", "", "")));
        assert!(fewer.verdict == Verdict::Warn && fewer.says == "8 may be used here, and the job has 16", "{fewer:?}");
        let busy = cpus(&Facts { accelerators: 8, ..facts(job("", "", "")) });
        assert!(busy.verdict == Verdict::Warn && busy.says.ends_with("so 10"), "{busy:?}");
        assert!(of_cpus(&Facts { cpus: None, ..facts(job("", "", "")) }).is_none());
    }

    #[test]
    fn memory_is_what_the_job_the_group_and_the_machine_allow() {
        for (job, limit, verdict, says) in [
            (job("", "", ""), None, Verdict::Ok, "524288 MiB, all"),
            (job("", "0", ""), None, Verdict::Ok, "524288 MiB, all"),
            (job("", "65536", ""), None, Verdict::Ok, "65536 MiB are the job's"),
            (job("", "65536", ""), Some(64 * GIB - 4096), Verdict::Ok, "65535 MiB may be used"),
            (
                job("8", "", "8192"),
                Some(32 * GIB),
                Verdict::Warn,
                "32768 MiB may be used here (control group), and the job has 65536",
            ),
            (job("", "4096", ""), None, Verdict::Warn, "4096 MiB may be used; what needs more is killed"),
            (job("", "", ""), Some(2 * GIB), Verdict::Warn, "2048 MiB may be used; "),
            (job("", "", ""), Some(u64::MAX), Verdict::Ok, "all of this machine's"),
        ] {
            let found = of_memory(&Facts { memory_bytes: limit, ..facts(job) }).unwrap();
            assert!(found.verdict == verdict && found.says.contains(says), "{found:?}");
        }
    }

    #[test]
    fn limits_that_break_engines_are_told() {
        let limits =
            |facts: Facts| of_limits(&facts).into_iter().map(|found| (found.verdict, found.says)).collect::<Vec<_>>();
        let well = limits(facts(JobArgs::default()));
        assert_eq!(well, [(Verdict::Ok, "this user may have any number of threads".to_owned())]);
        let few =
            Facts { threads: Some(500), locked_bytes: Some(65_536), core_bytes: None, ..facts(JobArgs::default()) };
        assert!(matches!(&limits(few.clone())[..], [(Verdict::Warn, threads), (Verdict::Warn, core)]
            if threads.contains("500 threads") && core.ends_with("to core")));
        assert!(limits(Facts { has_rdma: true, ..few.clone() })[1].1.contains("64 KiB may be locked"));
        let piped = Facts { core_pattern: "|/usr/lib/systemd/systemd-coredump".to_owned(), threads: None, ..few };
        assert_eq!(limits(piped)[0].0, Verdict::Ok);
    }
}
