//! How many files a process may open: every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than this is of no use, and some systems allow a billion.
const WANTED_MAX: u64 = 65_536;

/// Takes as many as the administrators allow. The usual limit is meant for programs that would not know what to do with
/// more; those that an engine starts are such, so a process that starts one leaves it as it is.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(WANTED_MAX).min(WANTED_MAX);
    if current.is_some_and(|current| current < wanted)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
    {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// How many may be open, at most.
pub(crate) fn limit_once_raised() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    current.unwrap_or(u64::MAX).max(maximum.unwrap_or(WANTED_MAX).min(WANTED_MAX))
}
