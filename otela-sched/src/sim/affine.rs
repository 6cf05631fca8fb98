//! Sums over the tokens of an answer, in closed form.
//!
//! Of a step that decodes, only the attention depends on the context, and it is the larger of two affine functions of it
//! (compute and memory). So it switches at most once, and the sum over all steps is two sums of arithmetic series.

/// `at_0 + slope * k`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    pub(super) at_0: f64,
    pub(super) slope: f64,
}

impl Affine {
    pub(super) fn at(self, k: f64) -> f64 {
        self.at_0 + self.slope * k
    }

    /// The sum over `count` whole numbers from `first` on.
    fn sum(self, first: f64, count: f64) -> f64 {
        count * (self.at_0 + self.slope * (first + (count - 1.0) / 2.0))
    }
}

/// The sum of the larger of the two over `count` whole numbers from `first` on; 0 for none.
pub(super) fn sum_of_larger(a: Affine, b: Affine, first: f64, count: f64) -> f64 {
    if count < 1.0 {
        return 0.0;
    }
    let last = first + count - 1.0;
    let (ahead_first, ahead_last) = (a.at(first) >= b.at(first), a.at(last) >= b.at(last));
    match (ahead_first, ahead_last) {
        (true, true) => a.sum(first, count),
        (false, false) => b.sum(first, count),
        _ => {
            let (head, tail) = if ahead_first { (a, b) } else { (b, a) };
            // The last whole number at which the head is not behind.
            let meet = first + ((tail.at_0 - head.at_0) / (head.slope - tail.slope) - first).floor();
            let count_head = (meet - first + 1.0).clamp(0.0, count);
            head.sum(first, count_head) + tail.sum(first + count_head, count - count_head)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_closed_form_is_the_sum(
            a in (0.0..10.0f64, 0.0..2.0f64), b in (0.0..10.0f64, 0.0..2.0f64), first in 0u32..50, count in 0u32..200,
        ) {
            let (a, b) = (Affine { at_0: a.0, slope: a.1 }, Affine { at_0: b.0, slope: b.1 });
            let literal: f64 = (first..first + count).map(f64::from).map(|k| a.at(k).max(b.at(k))).sum();
            let closed = sum_of_larger(a, b, f64::from(first), f64::from(count));
            prop_assert!((closed - literal).abs() <= 1e-9 * literal.max(1.0), "{} {}", closed, literal);
        }
    }
}
