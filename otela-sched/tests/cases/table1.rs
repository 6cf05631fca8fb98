//! OpenTela's Table 1 by the mean time of requests; the cases have it by the largest share.

#[path = "../../benches/placement/table1.rs"]
mod setup;

use otela_sched::{calibrate::Table, catalog::Catalog, place::Simulation};
use setup::{Sizes, by_memory, mean, ours, published, simulated};

#[test]
fn the_least_mean_latency_is_below_that_of_the_published_placement_of_table_1() {
    let catalog = Catalog::builtin();
    let problem = setup::problem(&catalog);
    let factors = setup::factors(&problem, &Table::builtin());
    // Chosen by some requests, judged by others.
    let [chosen_by, judged_by] =
        [1, 2].map(|seed| simulated(&problem, factors.clone(), Simulation { seconds: 20.0, seed }));
    for load in [0.05, 0.2, 1.0] {
        let rates = setup::RATES.map(|rate| rate * load);
        let told = |placement| mean(&problem, &rates, &placement, &judged_by);
        let [by_memory, published] = [by_memory(), published()].map(told);
        let [same, any] = [Sizes::OfPaper, Sizes::Any].map(|sizes| ours(&chosen_by, &problem, &rates, sizes));
        let judged = [same, any].map(|found| {
            assert!(found.fastest.is_least, "{found:?}");
            told(found.fastest.placement)
        });
        println!("{load} of the load: {by_memory:.2} s by memory, {published:.2} s published, {judged:.2?} s here");
        assert!(published < by_memory, "{published} {by_memory}");
        assert!(judged[0] < published && judged[1] < judged[0], "{judged:?} {published}");
    }
}
