//! What the key, the state and an engine's own files lie on. Key and state are small and belong to one machine; an
//! engine compiles what it then runs.

use super::finding::Finding;
use rustix::fs::{StatVfsMountFlags, statfs, statvfs};
use std::{
    fmt,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const CHECK: &str = "file systems";
const MIB: u64 = 1024 * 1024;
/// Key and state are a few KiB; of a disk with less than this the rest is soon gone.
const SMALL_BYTES: u64 = 16 * MIB;
/// What an engine compiles comes to hundreds of MiB.
const COMPILED_BYTES: u64 = 1024 * MIB;
const FILES: u64 = 1_000;

/// What a path is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Key,
    State,
    /// `HOME`.
    Home,
    /// `TMPDIR`.
    Scratch,
}

impl Use {
    const fn name(self) -> &'static str {
        match self {
            Self::Key => "the key",
            Self::State => "the state",
            Self::Home => "the home directory",
            Self::Scratch => "TMPDIR",
        }
    }

    const fn bytes(self) -> u64 {
        match self {
            Self::Key | Self::State => SMALL_BYTES,
            Self::Home | Self::Scratch => COMPILED_BYTES,
        }
    }
}

/// A file system, by the number that its kind has in `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(pub(super) u32);

/// Who sees what lies on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    ByOthers,
    /// This machine alone, until it restarts or the container ends.
    ForNow,
    Here,
    Unknown,
}

const KINDS: [(u32, &str, Seen); 25] = [
    (0x6969, "NFS", Seen::ByOthers),
    (0x0BD0_0BD0, "Lustre", Seen::ByOthers),
    (0x4750_4653, "GPFS", Seen::ByOthers),
    (0x1983_0326, "BeeGFS", Seen::ByOthers),
    (0x00C3_6400, "CephFS", Seen::ByOthers),
    (0x6573_5546, "FUSE", Seen::Unknown),
    (0x517B, "SMB", Seen::ByOthers),
    (0xFF53_4D42, "CIFS", Seen::ByOthers),
    (0xFE53_4D42, "SMB2", Seen::ByOthers),
    (0x0102_1997, "9p", Seen::Unknown),
    (0x5346_414F, "AFS", Seen::ByOthers),
    (0x6B41_4653, "AFS", Seen::ByOthers),
    (0xAAD7_AAEA, "PanFS", Seen::ByOthers),
    (0x2003_0528, "OrangeFS", Seen::ByOthers),
    (0x7461_636F, "OCFS2", Seen::ByOthers),
    (0x0116_1970, "GFS2", Seen::ByOthers),
    (0x794C_7630, "overlay", Seen::ForNow),
    (0x0102_1994, "tmpfs", Seen::ForNow),
    (0x8584_58F6, "ramfs", Seen::ForNow),
    (0xEF53, "ext4", Seen::Here),
    (0x5846_5342, "XFS", Seen::Here),
    (0x9123_683E, "btrfs", Seen::Here),
    (0x2FC1_2FC1, "ZFS", Seen::Here),
    (0xF2F5_2010, "F2FS", Seen::Here),
    (0x7371_7368, "squashfs", Seen::Here),
];

impl Kind {
    fn known(self) -> Option<&'static (u32, &'static str, Seen)> {
        KINDS.iter().find(|(magic, ..)| *magic == self.0)
    }

    fn seen(self) -> Seen {
        self.known().map_or(Seen::Unknown, |(.., seen)| *seen)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((_, name, _)) => f.write_str(name),
            None => write!(f, "a file system of the kind {:#x}", self.0),
        }
    }
}

/// What a path lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lies {
    pub(super) what: Use,
    pub(super) path: PathBuf,
    pub(super) on: Kind,
    /// For whoever asks.
    pub(super) free_bytes: u64,
    /// Where files are counted at all.
    pub(super) free_files: Option<u64>,
    pub(super) is_noexec: bool,
    /// Others than its owner may rename and replace what is in the folder.
    pub(super) is_open_folder: bool,
}

/// Looks at a path, or at the folder in which it would be made.
pub(super) fn read(what: Use, path: &Path) -> Option<Lies> {
    let there = path.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let there = there.into_iter().find(|path| path.exists())?;
    let (kind, facts) = (statfs(there).ok()?, statvfs(there).ok()?);
    let folder = if there.is_dir() { there } else { there.parent().filter(|path| !path.as_os_str().is_empty())? };
    let mode = std::fs::metadata(folder).map_or(0, |found| found.mode());
    Some(Lies {
        what,
        path: path.to_owned(),
        // The numbers have 32 bits, in whatever type the system returns them.
        on: Kind(kind.f_type as u32),
        free_bytes: facts.f_bavail.saturating_mul(facts.f_frsize),
        free_files: (facts.f_files > 0).then_some(facts.f_favail),
        is_noexec: facts.f_flag.contains(StatVfsMountFlags::NOEXEC),
        is_open_folder: mode & 0o022 != 0 && mode & 0o1000 == 0,
    })
}

/// `job` is the Slurm job around us.
pub(super) fn judge(all: &[Lies], job: Option<&str>) -> Vec<Finding> {
    all.iter().flat_map(|lies| of_one(lies, job)).collect()
}

fn of_one(lies: &Lies, job: Option<&str>) -> Vec<Finding> {
    let head = format!("{} {} is on {}", lies.what.name(), lies.path.display(), lies.on);
    let mut findings = vec![of_kind(lies, &head, job)];
    let mut warn = |says: String, advice: &str| findings.push(Finding::warn(CHECK, says, advice));
    if lies.free_bytes < lies.what.bytes() {
        let advice = "make room there, see `df` and the site's quota, or name another place";
        warn(format!("{head}, with {} MiB free", lies.free_bytes / MIB), advice);
    }
    if let Some(free) = lies.free_files.filter(|free| *free < FILES) {
        warn(
            format!("{head}, with room for {free} more files"),
            "remove small files there, see `df -i`, or name another place",
        );
    }
    let runs = matches!(lies.what, Use::Home | Use::Scratch);
    if lies.is_noexec && runs {
        let advice = "engines compile there what they load (Triton, torch.compile): set TMPDIR, TRITON_CACHE_DIR and \
                      TORCHINDUCTOR_CACHE_DIR to folders from which programs may be run";
        warn(format!("{head}, which is mounted noexec"), advice);
    }
    if lies.is_open_folder && lies.what == Use::Key {
        warn(format!("{head}, in a folder that others may write to, and replace it"), "run chmod go-w on the folder");
    }
    findings
}

/// The key and the state belong to one machine, the rest is the engine's own affair.
fn of_kind(lies: &Lies, head: &str, job: Option<&str>) -> Finding {
    let is_of_job = job.is_some_and(|job| lies.path.to_string_lossy().contains(job));
    match (lies.what, lies.on.seen()) {
        (Use::Key, Seen::ByOthers) if job.is_some() && !is_of_job => Finding::warn(
            CHECK,
            format!("{head}, where each job of yours finds it: two that run at once would be one peer"),
            "have a key for each job, --key \"/tmp/otela-$SLURM_JOB_ID.key\", or none; the key of a member for one job at a time",
        ),
        (Use::Key, Seen::ByOthers) => Finding::note(
            CHECK,
            format!("{head}, which other machines see"),
            "let one otela at a time have it; whether its lock holds between machines is up to the file system",
        ),
        (Use::State, Seen::ByOthers) => Finding::warn(
            CHECK,
            format!("{head}: locks may not hold there, and files may vanish under a running otela (ESTALE)"),
            "name a folder on this machine's own disk with --state, in a job \"/tmp/otela-$SLURM_JOB_ID\"",
        ),
        (Use::Key | Use::State, Seen::ForNow) => {
            let advice = "name another place, if it is to outlive that";
            Finding::note(CHECK, format!("{head}: it is gone when the machine restarts or the container ends"), advice)
        }
        _ => Finding::ok(CHECK, head),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    const NFS: Kind = Kind(0x6969);
    const LUSTRE: Kind = Kind(0x0BD0_0BD0);
    const EXT4: Kind = Kind(0xEF53);

    fn lies(what: Use, path: &str, on: Kind) -> Lies {
        Lies {
            what,
            path: path.into(),
            on,
            free_bytes: 1 << 40,
            free_files: Some(1 << 20),
            is_noexec: false,
            is_open_folder: false,
        }
    }

    fn verdicts(lies: &Lies, job: Option<&str>) -> Vec<Verdict> {
        of_one(lies, job).iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn p48_a_key_that_two_jobs_would_share_is_told() {
        let key = |path, on, job| of_one(&lies(Use::Key, path, on), job).remove(0);
        let shared = key("/users/me/otela.key", NFS, Some("4711"));
        assert!(shared.verdict == Verdict::Warn && shared.says.contains("NFS") && shared.says.contains("one peer"));
        assert!(shared.advice.is_some_and(|advice| advice.contains("$SLURM_JOB_ID")));
        assert_eq!(key("/users/me/otela-4711.key", NFS, Some("4711")).verdict, Verdict::Ok, "it is the job's own");
        assert_eq!(key("/users/me/otela.key", NFS, None).verdict, Verdict::Ok, "a service on one machine");
        assert_eq!(key("/var/tmp/otela.key", EXT4, Some("4711")).verdict, Verdict::Ok);
    }

    #[test]
    fn state_on_what_other_machines_see_goes_stale() {
        for on in [NFS, LUSTRE, Kind(0x4750_4653), Kind(0x1983_0326), Kind(0x00C3_6400)] {
            let found = of_one(&lies(Use::State, "/scratch/otela", on), None).remove(0);
            assert!(found.verdict == Verdict::Warn && found.says.contains("ESTALE"), "{found:?}");
        }
        for on in [EXT4, Kind(0x0102_1994), Kind(0x794C_7630), Kind(7)] {
            assert_eq!(verdicts(&lies(Use::State, "/var/tmp/otela", on), None), [Verdict::Ok], "{on}");
        }
        assert_eq!(verdicts(&lies(Use::Home, "/users/me", NFS), Some("1")), [Verdict::Ok], "homes usually are");
        assert!(of_one(&lies(Use::Home, "/users/me", Kind(0xABCD)), None)[0].says.contains("0xabcd"));
    }

    #[test]
    fn full_and_forbidden_places_are_told() {
        let mut state = lies(Use::State, "/var/tmp/otela", EXT4);
        state.free_bytes = 15 * MIB;
        state.free_files = Some(3);
        assert_eq!(verdicts(&state, None), [Verdict::Ok, Verdict::Warn, Verdict::Warn]);
        state.free_files = None;
        state.free_bytes = 17 * MIB;
        state.is_noexec = true;
        assert_eq!(verdicts(&state, None), [Verdict::Ok], "nothing is run from there, and files are not counted");
        let mut scratch = Lies { what: Use::Scratch, ..state };
        assert_eq!(verdicts(&scratch, None), [Verdict::Ok, Verdict::Warn, Verdict::Warn]);
        scratch.what = Use::Key;
        scratch.is_open_folder = true;
        assert!(of_one(&scratch, None)[1].says.contains("replace it"));
    }

    #[test]
    fn paths_that_are_not_there_lie_where_they_would_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let there = read(Use::State, dir.path()).unwrap();
        let to_be = read(Use::State, &dir.path().join("no/such")).unwrap();
        assert_eq!((there.on, there.is_open_folder), (to_be.on, false));
        assert!(read(Use::Key, Path::new("key")).is_some(), "relative to where we are");
    }
}
