//! Failure detector.
