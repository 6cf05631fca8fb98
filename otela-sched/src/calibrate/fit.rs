//! Finding factors: robust regression of log errors, with a prior.
//!
//! The cost is a Cauchy loss, which lets go of rows that nothing explains, plus how far the factors are from what is
//! usual. Times to first token are few, and nothing else tells apart what computing and what moving costs; they count
//! in full. (From whole batches alone, the compute ratio comes out anywhere between 0.2 and 0.6, and times to first
//! token off by 15 % to 250 %.) The minimum is found by Levenberg and Marquardt's method over the factors' logarithms,
//! from the prior on, so that the same rows always give the same factors.

use crate::sim::Factors;

/// Measurements that factors can be held against.
pub trait Evidence {
    /// For each, the logarithm of foretold over measured.
    fn log_errors(&self, factors: &Factors) -> Vec<f64>;

    /// Whether this one counts in full however far off it is: times to first token.
    fn is_trusted(&self, index: usize) -> bool;
}

/// Errors beyond this count less and less.
const CAUCHY: f64 = 0.07;
/// How much more a trusted one counts than another.
const TRUSTED: f64 = 8.0;
/// How much one standard deviation away from the prior counts, as an error.
const PRIOR: f64 = 0.03;
const ITERATIONS_MAX: usize = 200;
/// Step of the numeric derivative, and the gain below which it is done.
const NUDGE: f64 = 1e-4;
const GAIN_MIN: f64 = 1e-9;
/// Passes over the logits, fixed: only vocabularies of one size are in what is fitted on.
const LOGIT_PASSES: f64 = 10.0;

/// One factor: where it is in [`Factors`], what is usual, how far around that (in its logarithm), and its bound.
struct Parameter {
    place: fn(&mut Factors) -> &mut f64,
    usual: f64,
    spread: f64,
    max: f64,
}

const PARAMETERS: [Parameter; 9] = [
    // No library's products of real sizes come nearer to the peak; a run without times to first token hardly tells.
    Parameter { place: |f| &mut f.compute_ratio, usual: 0.7, spread: 0.2, max: 0.9 },
    Parameter { place: |f| &mut f.bandwidth_ratio, usual: 0.8, spread: 0.12, max: 0.97 },
    Parameter { place: |f| &mut f.attention_ratio, usual: 0.8, spread: 0.15, max: 1.0 },
    Parameter { place: |f| &mut f.regroup_passes, usual: 0.15, spread: 0.7, max: f64::INFINITY },
    Parameter { place: |f| &mut f.kv_write_passes, usual: 2.0, spread: 1.5, max: f64::INFINITY },
    Parameter { place: |f| &mut f.step_seconds, usual: 1.2e-3, spread: 0.8, max: f64::INFINITY },
    Parameter { place: |f| &mut f.sequence_seconds, usual: 3e-5, spread: 1.0, max: f64::INFINITY },
    Parameter { place: |f| &mut f.all_reduce_seconds, usual: 2e-5, spread: 0.5, max: f64::INFINITY },
    Parameter { place: |f| &mut f.link_ratio, usual: 0.45, spread: 0.4, max: 1.0 },
];
const COUNT: usize = PARAMETERS.len();
type Vector = [f64; COUNT];

/// The factors that explain the evidence best.
pub fn fit<E: Evidence + ?Sized>(evidence: &E) -> Factors {
    let problem = Problem { evidence };
    let mut at = PARAMETERS.each_ref().map(|p| p.usual.ln());
    let mut errors = problem.errors(&at);
    let mut cost = problem.cost(&errors, &at);
    let mut damping = 1e-2;
    for _ in 0..ITERATIONS_MAX {
        let (curvature, slope) = problem.linearised(&errors, &at);
        let mut better = None;
        while better.is_none() && damping < 1e9 {
            let mut damped = curvature;
            for (i, row) in damped.iter_mut().enumerate() {
                row[i] *= 1.0 + damping;
            }
            let next = problem.moved(&at, &solve(damped, slope));
            let next_errors = problem.errors(&next);
            let next_cost = problem.cost(&next_errors, &next);
            if next_cost < cost {
                better = Some((next, next_errors, next_cost));
            } else {
                damping *= 4.0;
            }
        }
        let Some((next, next_errors, next_cost)) = better else { break };
        let gain = cost - next_cost;
        (at, errors, cost) = (next, next_errors, next_cost);
        if gain < GAIN_MIN * cost {
            break;
        }
        damping = (damping / 5.0).max(1e-9);
    }
    factors(&at)
}

fn factors(at: &Vector) -> Factors {
    let mut factors = Factors { logit_passes: LOGIT_PASSES, ..Factors::IDEAL };
    for (parameter, value) in PARAMETERS.iter().zip(at) {
        *(parameter.place)(&mut factors) = value.exp();
    }
    factors
}

struct Problem<'a, E: ?Sized> {
    evidence: &'a E,
}

impl<E: Evidence + ?Sized> Problem<'_, E> {
    fn errors(&self, at: &Vector) -> Vec<f64> {
        self.evidence.log_errors(&factors(at))
    }

    fn cost(&self, errors: &[f64], at: &Vector) -> f64 {
        let of_one = |(i, error): (usize, &f64)| {
            if self.evidence.is_trusted(i) {
                (TRUSTED * error).powi(2)
            } else {
                CAUCHY.powi(2) * (error / CAUCHY).powi(2).ln_1p()
            }
        };
        let off = |(parameter, value): (&Parameter, &f64)| {
            (PRIOR * (value - parameter.usual.ln()) / parameter.spread).powi(2)
        };
        errors.iter().enumerate().map(of_one).sum::<f64>() + PARAMETERS.iter().zip(at).map(off).sum::<f64>()
    }

    /// The cost's curvature (of Gauss and Newton) and the way down from `at`.
    fn linearised(&self, errors: &[f64], at: &Vector) -> ([Vector; COUNT], Vector) {
        let mut derivatives: Vec<Vector> = vec![[0.0; COUNT]; errors.len()];
        for j in 0..COUNT {
            let mut nudged = *at;
            nudged[j] += NUDGE;
            for (row, (new, old)) in derivatives.iter_mut().zip(self.errors(&nudged).iter().zip(errors)) {
                row[j] = (new - old) / NUDGE;
            }
        }
        let (mut curvature, mut down) = ([[0.0; COUNT]; COUNT], [0.0; COUNT]);
        for (i, (row, error)) in derivatives.iter().zip(errors).enumerate() {
            let trusted = self.evidence.is_trusted(i);
            let weight = if trusted { TRUSTED * TRUSTED } else { 1.0 / (1.0 + (error / CAUCHY).powi(2)) };
            for j in 0..COUNT {
                down[j] -= weight * row[j] * error;
                for k in 0..COUNT {
                    curvature[j][k] += weight * row[j] * row[k];
                }
            }
        }
        for (j, parameter) in PARAMETERS.iter().enumerate() {
            let weight = (PRIOR / parameter.spread).powi(2);
            curvature[j][j] += weight;
            down[j] -= weight * (at[j] - parameter.usual.ln());
        }
        (curvature, down)
    }

    /// A step from `at`, kept within bounds.
    fn moved(&self, at: &Vector, step: &Vector) -> Vector {
        let mut next = *at;
        for (j, parameter) in PARAMETERS.iter().enumerate() {
            next[j] = (at[j] + step[j].clamp(-1.0, 1.0)).min(parameter.max.ln());
        }
        next
    }
}

/// Solves `a x = b` for a positive definite `a`, by Cholesky's method.
fn solve(mut a: [Vector; COUNT], mut b: Vector) -> Vector {
    for j in 0..COUNT {
        for k in 0..j {
            let factor = a[j][k];
            for row in &mut a[j..] {
                row[j] -= row[k] * factor;
            }
        }
        // Rounding may leave nothing of a direction that nothing depends on; then there is no step in it.
        let pivot = a[j][j].max(1e-300).sqrt();
        for row in &mut a[j..] {
            row[j] /= pivot;
        }
    }
    for j in 0..COUNT {
        b[j] /= a[j][j];
        for i in j + 1..COUNT {
            b[i] -= a[i][j] * b[j];
        }
    }
    for j in (0..COUNT).rev() {
        b[j] /= a[j][j];
        for i in 0..j {
            b[i] -= a[j][i] * b[j];
        }
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_equations_are_solved() {
        let mut a = [[0.0; COUNT]; COUNT];
        for (i, row) in a.iter_mut().enumerate() {
            for (j, value) in row.iter_mut().enumerate() {
                *value = if i == j { 10.0 } else { 1.0 / (1.0 + i as f64 + j as f64) };
            }
        }
        let x: Vector = std::array::from_fn(|i| i as f64 - 3.0);
        let b: Vector = std::array::from_fn(|i| a[i].iter().zip(x).map(|(a, x)| a * x).sum());
        for (found, x) in solve(a, b).iter().zip(x) {
            assert!((found - x).abs() < 1e-12);
        }
    }
}
