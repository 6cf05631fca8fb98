//! How much memory the control groups around this process allow it, in either version of them.

use std::path::Path;

/// The least that one of our groups and of those around them allows. `groups` is what `/proc/self/cgroup` says, `root`
/// where the groups are mounted. A group that is not seen from here, as in a container, says nothing.
pub(super) fn memory_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let (mount, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            // The kernel lists the limit of a group of version 1 that has none as almost 2^63, which is more than any machine has.
            _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let groups = Path::new(group).ancestors().map(|group| mount.join(group).join(file));
        groups.filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_narrowest_group_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(memory_limit("0::/a/b\n4:memory:/a", root), None, "nothing is mounted");
        write(root, "system.slice/job_1/memory.max", "4096\n");
        write(root, "system.slice/job_1/step_0/memory.max", "max\n");
        assert_eq!(memory_limit("0::/system.slice/job_1/step_0\n", root), Some(4096));
        assert_eq!(memory_limit("1:cpu:/system.slice/job_1\n", root), None);
        write(root, "memory/slurm/memory.limit_in_bytes", "9223372036854771712\n");
        write(root, "memory/slurm/job_1/memory.limit_in_bytes", "2048\n");
        let groups = "5:cpu,cpuacct:/x\n4:hugetlb,memory:/slurm/job_1/step_0\n0::/system.slice/job_1\n";
        assert_eq!(memory_limit(groups, root), Some(2048));
    }
}
