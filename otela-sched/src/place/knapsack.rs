//! What replicas of several forms can do together with so many accelerators of one pool: an unbounded knapsack.

use super::choice::{Choice, real};

/// What `k` accelerators serve, for each `k` up to `count`. `forms` are sizes and what each serves.
pub(super) fn capacities(forms: &[(u32, f64)], count: u32) -> Vec<f64> {
    let mut served = vec![0.0_f64; count as usize + 1];
    for k in 1..=count {
        let with = forms.iter().filter(|(tp, _)| *tp <= k).map(|(tp, value)| served[(k - tp) as usize] + value);
        served[k as usize] = with.fold(served[k as usize - 1], f64::max);
    }
    served
}

/// The replicas of each form that serve so much with `k` accelerators.
pub(super) fn replicas(forms: &[(u32, f64)], k: u32) -> Vec<(u32, u32)> {
    let served = capacities(forms, k);
    let mut left = k;
    let mut counts = vec![0_u32; forms.len()];
    while left > 0 {
        let here = served[left as usize];
        if here <= served[left as usize - 1] {
            left -= 1;
            continue;
        }
        let taken = forms.iter().position(|(tp, value)| *tp <= left && served[(left - tp) as usize] + value >= here);
        let Some(taken) = taken else { break };
        counts[taken] += 1;
        left -= forms[taken].0;
    }
    let some = forms.iter().zip(counts).filter(|(_, count)| *count > 0);
    some.map(|((tp, _), count)| (*tp, count)).collect()
}

/// The forms of one pool within a deadline, without those that serve nothing.
pub(super) fn forms(choices: &[Choice], pool: usize, deadline: f64) -> Vec<(u32, f64)> {
    let of_pool = choices.iter().filter(|choice| choice.pool == pool);
    of_pool.map(|choice| (choice.tp, real(choice.batch_within(deadline)))).filter(|(_, batch)| *batch > 0.0).collect()
}
