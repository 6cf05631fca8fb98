pub(crate) mod launch;
pub(crate) mod ready;
pub(crate) mod tree;
