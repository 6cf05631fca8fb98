//! The cases, by what they try: each named by the public report that it comes from.

pub(crate) mod launch;
pub(crate) mod ready;
pub(crate) mod tree;
