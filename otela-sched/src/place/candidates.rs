//! What each model may take, judged; and the combination of all models that is best.

use super::{
    cover::{Breadth, Choice, Combined, Room, TooManyTypes},
    latency::{Evaluate, Fastest, Form},
    problem::{Problem, Replicas},
};

/// Combinations of replicas that are judged for one model, at most.
const JUDGED_MAX: u64 = 50_000;
/// Sums of a combination so far and one more model's replicas; a hundred million are about a second.
const WORK: u64 = 200_000_000;

/// What a model may take.
pub(super) struct Candidate {
    /// Form and number, by pool.
    pub(super) replicas: Vec<(Form, u32)>,
    used: Vec<u32>,
    /// Rate times mean seconds.
    pub(super) value: f64,
}

/// What all models may take.
pub(super) struct Candidates {
    room: Room,
    pub(super) by_model: Vec<Vec<Candidate>>,
    /// Whether these are all, but for those to which another is better in everything.
    is_all: bool,
}

impl Candidates {
    /// Numbers of replicas of one size for each model and pool, judged.
    pub(super) fn new(problem: &Problem<'_>, rates: &[f64], evaluate: &dyn Evaluate) -> Result<Self, TooManyTypes> {
        let stock: Vec<u32> = problem.pools.iter().map(|pool| pool.count).collect();
        let mut candidates = Self { room: Room::new(&stock)?, by_model: Vec::new(), is_all: true };
        for (model, rate) in rates.iter().enumerate() {
            let (mut mine, all) = judged(problem, (model, *rate), evaluate);
            candidates.is_all &= all;
            prune(&mut mine);
            candidates.by_model.push(mine);
        }
        Ok(candidates)
    }

    /// One for each model, so that all fit and the sum of their values is least.
    pub(super) fn combine(&self) -> Combined {
        let choice = |candidate: &Candidate| {
            let used = candidate.used.iter().copied();
            self.room.choice(used, candidate.value, candidate.value).expect("no more than there is")
        };
        let choices: Vec<Vec<Choice>> =
            self.by_model.iter().map(|of_model| of_model.iter().map(choice).collect()).collect();
        self.room.combine(&choices, f64::INFINITY, Breadth { states_max: 1 << 20, work: WORK })
    }

    /// These, one for each model, as a placement.
    pub(super) fn fastest(&self, rates: &[f64], chosen: &[usize], complete: bool) -> Fastest {
        let chosen: Vec<&Candidate> =
            chosen.iter().zip(&self.by_model).map(|(&nth, of_model)| &of_model[nth]).collect();
        let replicas = |candidate: &&Candidate| {
            let of = |(form, count): &(Form, u32)| Replicas { pool: form.pool(), tp: form.tp(), count: *count };
            candidate.replicas.iter().map(of).collect()
        };
        let mean = |value: f64, rate: f64| if rate > 0.0 { value / rate } else { 0.0 };
        Fastest {
            placement: chosen.iter().map(replicas).collect(),
            mean_seconds: mean(chosen.iter().map(|candidate| candidate.value).sum(), rates.iter().sum()),
            seconds: chosen.iter().zip(rates).map(|(candidate, rate)| mean(candidate.value, *rate)).collect(),
            is_least: self.is_all && complete,
        }
    }
}

/// Numbers of replicas of one size in each pool, judged; and whether these are all.
fn judged(problem: &Problem<'_>, (model, rate): (usize, f64), evaluate: &dyn Evaluate) -> (Vec<Candidate>, bool) {
    let nothing = Candidate { replicas: Vec::new(), used: vec![0; problem.pools.len()], value: 0.0 };
    if rate <= 0.0 {
        return (vec![nothing], true);
    }
    let forms = Form::all(problem, model);
    let by_pool = |grid: u32| -> Vec<Vec<(Form, u32)>> {
        let of = |pool: usize| {
            let here = forms.iter().filter(move |form| form.pool() == pool);
            let counts = here.flat_map(|form| {
                let all = 1..=problem.pools[pool].count / form.tp();
                all.filter(|count| *count == 1 || count.is_multiple_of(grid)).map(|count| (*form, count))
            });
            counts.collect()
        };
        (0..problem.pools.len()).map(of).collect()
    };
    let size =
        |choices: &Vec<Vec<(Form, u32)>>| choices.iter().map(|of| of.len() as u64 + 1).fold(1_u64, u64::saturating_mul);
    let mut grid = 1;
    let mut choices = by_pool(grid);
    while size(&choices) > JUDGED_MAX && grid < 1 << 16 {
        grid *= 2;
        choices = by_pool(grid);
    }
    let mut candidates = vec![nothing];
    for (pool, choices) in choices.iter().enumerate() {
        for nth in 0..candidates.len() {
            for (form, count) in choices {
                let (mut replicas, mut used) = (candidates[nth].replicas.clone(), candidates[nth].used.clone());
                replicas.push((*form, *count));
                used[pool] = form.tp() * count;
                candidates.push(Candidate { replicas, used, value: 0.0 });
            }
        }
    }
    for candidate in &mut candidates {
        candidate.value = rate * evaluate.seconds(model, rate, &candidate.replicas);
    }
    candidates.retain(|candidate| candidate.value.is_finite());
    (candidates, grid == 1)
}

/// Leaves out what takes no less than another and is no better.
fn prune(candidates: &mut Vec<Candidate>) {
    candidates.sort_by(|one, other| one.value.total_cmp(&other.value));
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in candidates.drain(..) {
        let is_enough = |other: &Candidate| other.used.iter().zip(&candidate.used).all(|(other, mine)| other <= mine);
        if !kept.iter().any(is_enough) {
            kept.push(candidate);
        }
    }
    *candidates = kept;
}
