//! When a replica has worked, and on how many sequences: in equal parts of time.

/// Parts that are kept; what comes after them counts for the last.
const PARTS_MAX: usize = 10_000;

/// What a replica has done.
#[derive(Debug)]
pub(super) struct Work {
    /// How long a part is, in seconds.
    part: f64,
    /// When the part that is being filled ends.
    end: f64,
    /// Sequences times seconds of those that are over.
    parts: Vec<f64>,
    /// The same of the part that is being filled.
    now: f64,
    /// Seconds in which it worked at all.
    busy: f64,
}

impl Work {
    /// None yet, in parts of so many seconds.
    pub(super) fn new(part: f64) -> Self {
        let part = if part > 0.0 { part } else { f64::INFINITY };
        Self { part, end: part, parts: Vec::new(), now: 0.0, busy: 0.0 }
    }

    /// It has worked on so many sequences from one moment to another. Moments come in their order.
    pub(super) fn add(&mut self, mut from: f64, to: f64, sequences: u32) {
        let sequences = f64::from(sequences);
        self.busy += to - from;
        while to > self.end {
            self.now += sequences * (self.end - from).max(0.0);
            from = from.max(self.end);
            self.parts.push(std::mem::take(&mut self.now));
            let next = self.parts.len() + 1;
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let end = self.part * next as f64;
            self.end = if next < PARTS_MAX { end } else { f64::INFINITY };
        }
        self.now += sequences * (to - from);
    }

    /// Seconds in which it worked.
    pub(super) fn busy_seconds(&self) -> f64 {
        self.busy
    }

    /// Sequences times seconds in each part, to the last in which it worked.
    pub(super) fn parts(&self) -> Vec<f64> {
        self.parts.iter().copied().chain([self.now]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_in_the_parts_in_which_it_was() {
        let mut work = Work::new(10.0);
        for (from, to, sequences) in [(1.0, 4.0, 1), (8.0, 12.0, 2), (12.0, 13.0, 1), (35.0, 61.0, 3)] {
            work.add(from, to, sequences);
        }
        assert_eq!(work.parts(), [7.0, 5.0, 0.0, 15.0, 30.0, 30.0, 3.0]);
        assert!((work.busy_seconds() - 34.0).abs() < 1e-9);
        let mut whole = Work::new(f64::INFINITY);
        whole.add(1.0, 1e9, 1);
        assert_eq!(whole.parts(), [1e9 - 1.0]);
    }
}
