//! Head.
fn main() {}
