//! Whether all models' needs can be met with the accelerators that there are: exact, by min-plus combination.
//!
//! What a model can do with `k` accelerators of a pool never shrinks with `k`. So of all the ways to meet its need only the
//! minimal ones matter, and for those the fewest accelerators of one pool, given how many of each other. Models are combined
//! one after another, and only those combinations are kept to which no other is better everywhere.

/// What each model can do: by model, pool and number of accelerators (in units of the pool).
pub(super) type Capacities = Vec<Vec<Vec<f64>>>;

/// The accelerators that each model gets of each pool, so that each has at least what it needs; none if that cannot be.
pub(super) fn fit(capacities: &Capacities, needs: &[f64], counts: &[usize]) -> Option<Vec<Vec<usize>>> {
    let Some(last) = (0..counts.len()).max_by_key(|pool| counts[*pool]) else {
        return needs.iter().all(|need| *need <= 0.0).then(|| vec![Vec::new(); needs.len()]);
    };
    let grid = Grid::new(counts, last);
    let mut layers = Vec::with_capacity(needs.len());
    // Fewest accelerators of the last pool, by those of the others.
    let mut fewest = vec![usize::MAX; grid.cells];
    fewest[0] = 0;
    for (capacity, need) in capacities.iter().zip(needs) {
        let ways = ways(&grid, capacity, *need, counts[last]);
        let (next, chosen) = add(&grid, &fewest, &ways, counts[last]);
        layers.push((ways, chosen));
        fewest = next;
    }
    let best = (0..grid.cells).filter(|cell| fewest[*cell] <= counts[last]).min_by_key(|cell| fewest[*cell])?;
    Some(walk_back(&grid, &layers, best, last))
}

/// The cells for the numbers of accelerators of all pools but one.
struct Grid {
    pools: Vec<usize>,
    counts: Vec<usize>,
    strides: Vec<usize>,
    cells: usize,
}

/// How many cells a grid for these counts has.
pub(super) fn cells(counts: &[usize]) -> usize {
    let most = counts.iter().copied().max().map_or(1, |most| most + 1);
    counts.iter().fold(1_usize, |cells, count| cells.saturating_mul(count + 1)) / most
}

impl Grid {
    fn new(counts: &[usize], last: usize) -> Self {
        let pools: Vec<usize> = (0..counts.len()).filter(|pool| *pool != last).collect();
        let counts: Vec<usize> = pools.iter().map(|pool| counts[*pool]).collect();
        let mut cells = 1;
        let strides = counts.iter().map(|count| {
            let stride = cells;
            cells *= count + 1;
            stride
        });
        let strides = strides.collect();
        Self { pools, counts, strides, cells }
    }

    fn at(&self, cell: usize, dimension: usize) -> usize {
        cell / self.strides[dimension] % (self.counts[dimension] + 1)
    }

    /// The cells that have one accelerator less of one pool.
    fn below(&self, cell: usize) -> impl Iterator<Item = usize> + '_ {
        let dimensions = 0..self.pools.len();
        dimensions.filter(move |d| self.at(cell, *d) > 0).map(move |d| cell - self.strides[d])
    }

    fn fits(&self, one: usize, other: usize) -> bool {
        (0..self.pools.len()).all(|d| self.at(one, d) + self.at(other, d) <= self.counts[d])
    }
}

/// A way to meet a model's need.
#[derive(Debug, Clone, Copy)]
struct Way {
    cell: usize,
    last: usize,
}

/// The minimal ways.
fn ways(grid: &Grid, capacity: &[Vec<f64>], need: f64, count_last: usize) -> Vec<Way> {
    let last = (0..capacity.len()).find(|pool| !grid.pools.contains(pool)).unwrap_or(0);
    let mut fewest = vec![usize::MAX; grid.cells];
    for (cell, fewest) in fewest.iter_mut().enumerate() {
        let others: f64 = grid.pools.iter().enumerate().map(|(d, pool)| capacity[*pool][grid.at(cell, d)]).sum();
        let enough = capacity[last].partition_point(|capacity| others + capacity < need);
        if enough <= count_last {
            *fewest = enough;
        }
    }
    minimal(grid, &fewest)
}

/// Cells to which none with less of everything is as good.
fn minimal(grid: &Grid, fewest: &[usize]) -> Vec<Way> {
    let mut best = fewest.to_vec();
    let mut kept = Vec::new();
    for cell in 0..grid.cells {
        let below = grid.below(cell).map(|below| best[below]).min().unwrap_or(usize::MAX);
        if fewest[cell] < below {
            kept.push(Way { cell, last: fewest[cell] });
        }
        best[cell] = best[cell].min(below);
    }
    kept
}

/// Adds a model: the fewest of the last pool in each cell, and by which of its ways.
fn add(grid: &Grid, fewest: &[usize], ways: &[Way], count_last: usize) -> (Vec<usize>, Vec<u32>) {
    let mut next = vec![usize::MAX; grid.cells];
    let mut chosen = vec![u32::MAX; grid.cells];
    for so_far in minimal(grid, fewest) {
        for (nth, way) in (0..).zip(ways) {
            let all = so_far.last + way.last;
            let cell = so_far.cell + way.cell;
            if all <= count_last && grid.fits(so_far.cell, way.cell) && all < next[cell] {
                next[cell] = all;
                chosen[cell] = nth;
            }
        }
    }
    (next, chosen)
}

fn walk_back(grid: &Grid, layers: &[(Vec<Way>, Vec<u32>)], end: usize, last: usize) -> Vec<Vec<usize>> {
    let mut cell = end;
    let mut found = Vec::with_capacity(layers.len());
    for (ways, chosen) in layers.iter().rev() {
        let way = ways[chosen[cell] as usize];
        let mut given = vec![0; grid.pools.len() + 1];
        given[last] = way.last;
        for (d, pool) in grid.pools.iter().enumerate() {
            given[*pool] = grid.at(way.cell, d);
        }
        found.push(given);
        cell -= way.cell;
    }
    found.reverse();
    found
}
