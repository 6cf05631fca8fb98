//! A map of a placement: every accelerator is a cell, by type and node, in the colour of the model that it is for.

use super::{
    Area, GRID, INK, MARGIN, PALE, Painted, Picture, TEXT, TITLE, WIDTH, color, legend, legend_height, write_text,
};
use otela_sched::place::Replicas;
use plotters::prelude::*;

const SPARE: RGBColor = RGBColor(206, 211, 218);
/// Between cells of different replicas, around those of a node, and between nodes.
const GAP: i32 = 3;
const FRAME: i32 = 5;
const BETWEEN: i32 = 8;
/// Cells beside each other in a node.
const ROW: usize = 16;
const HEAD: i32 = 26;

/// Accelerators of one type: what there is of them, and what is placed.
pub(in crate::sched) struct Placed<'a> {
    /// Its name.
    pub(in crate::sched) accelerator: &'a str,
    /// Accelerators of each node.
    pub(in crate::sched) nodes: Vec<u32>,
    /// Parts of nodes that replicas do not go beyond, largest first; each divides the one before.
    pub(in crate::sched) blocks: Vec<u32>,
    /// Replicas by model, each with the block that it is counted in, if it is.
    pub(in crate::sched) replicas: Vec<(usize, Replicas, Option<u32>)>,
}

/// An accelerator: which model it is for, and for which of the replicas on it.
type Cell = Option<(usize, usize)>;

/// A placement's picture.
pub(in crate::sched) struct Map<'a> {
    title: String,
    /// Models by name.
    models: Vec<&'a str>,
    /// Types by name, with the cells of each node.
    types: Vec<(&'a str, Vec<Vec<Cell>>)>,
}

/// A part of a node.
struct Block {
    node: usize,
    begin: usize,
    size: usize,
    taken: usize,
}

impl<'a> Map<'a> {
    /// The map of what is placed. Which node a replica is on is open where the placement does not say it; here large ones
    /// come first.
    pub(in crate::sched) fn new(title: String, models: Vec<&'a str>, placed: &[Placed<'a>]) -> Self {
        let types = placed.iter().map(|of| (of.accelerator, cells(of))).collect();
        Self { title, models, types }
    }

    /// How large a cell is: smaller where there are many.
    fn cell(&self) -> i32 {
        match self.types.iter().flat_map(|(_, nodes)| nodes).map(Vec::len).sum::<usize>() {
            0..=320 => 24,
            321..=1_500 => 16,
            1_501..=6_000 => 9,
            _ => 5,
        }
    }

    fn legend(&self) -> Vec<(String, RGBColor)> {
        let all = || self.types.iter().flat_map(|(_, nodes)| nodes.iter().flatten());
        let models = self.models.iter().enumerate().map(|(nth, name)| {
            let count = all().filter(|cell| cell.is_some_and(|(model, _)| model == nth)).count();
            (format!("{name}: {count}"), color(nth))
        });
        let spare = all().filter(|cell| cell.is_none()).count();
        models.chain((spare > 0).then(|| (format!("spare: {spare}"), SPARE))).collect()
    }

    /// Where the frame of each node of a type begins, below its name, and how high all of them are.
    fn places(&self, nodes: &[Vec<Cell>]) -> (Vec<(i32, i32)>, i32) {
        let room = WIDTH.cast_signed() - 2 * MARGIN;
        let (mut x, mut y, mut line) = (0, 0, 0);
        let mut places = Vec::new();
        for node in nodes {
            let (wide, high) = self.frame(node.len());
            if x > 0 && x + wide > room {
                (x, y, line) = (0, y + line + BETWEEN, 0);
            }
            places.push((x, y));
            x += wide + BETWEEN;
            line = line.max(high);
        }
        (places, y + line)
    }

    /// How wide and high the frame of a node with so many cells is.
    fn frame(&self, cells: usize) -> (i32, i32) {
        let row = cells.min(ROW);
        let long =
            |cells: usize| i32::try_from(cells).unwrap_or(i32::MAX / 1000) * (self.cell() + GAP) - GAP + 2 * FRAME;
        (long(row), long(cells.div_ceil(ROW)))
    }

    fn node<B: DrawingBackend>(&self, area: &Area<'_, B>, at: (i32, i32), node: &[Cell]) -> Painted<B> {
        let (wide, high) = self.frame(node.len());
        area.draw(&Rectangle::new([at, (at.0 + wide, at.1 + high)], GRID.filled()))?;
        let step = self.cell() + GAP;
        for (nth, cell) in node.iter().enumerate() {
            let place = |nth: usize| i32::try_from(nth).unwrap_or(0) * step;
            let (x, y) = (at.0 + FRAME + place(nth % ROW), at.1 + FRAME + place(nth / ROW));
            let style = cell.map_or(SPARE, |(model, _)| color(model)).filled();
            // Those of one replica are joined.
            let is_joined = cell.is_some() && nth % ROW + 1 < ROW && node.get(nth + 1) == Some(cell);
            // The next one begins a little below this one: no seam shows where the picture is scaled.
            let right = x + self.cell() + if is_joined { GAP + 1 } else { 0 };
            area.draw(&Rectangle::new([(x, y), (right, y + self.cell())], style))?;
            if is_joined {
                let (top, middle) = (y + self.cell() / 4, x + self.cell() + GAP / 2);
                let line = [(middle, top), (middle, y + self.cell() - self.cell() / 4)];
                area.draw(&PathElement::new(line, WHITE.mix(0.7).stroke_width(1)))?;
            }
        }
        Ok(())
    }
}

impl Picture for Map<'_> {
    fn height(&self) -> u32 {
        let types = self.types.iter().map(|(_, nodes)| HEAD + self.places(nodes).1 + 18);
        (MARGIN + 36 + legend_height(&self.legend()) + 10 + types.sum::<i32>() + 4).cast_unsigned()
    }

    fn paint<B: DrawingBackend>(&self, area: &Area<'_, B>) -> Painted<B> {
        write_text(area, &self.title, (MARGIN, MARGIN), TITLE, INK)?;
        let mut y = MARGIN + 36;
        y += legend(area, (MARGIN, y), &self.legend())? + 10;
        for (name, nodes) in &self.types {
            let count: usize = nodes.iter().map(Vec::len).sum();
            let spare = nodes.iter().flatten().filter(|cell| cell.is_none()).count();
            let said = if spare > 0 { format!(", {spare} of them spare") } else { String::new() };
            write_text(area, &format!("{name}: {count}{said}"), (MARGIN, y), TEXT + 1, INK)?;
            y += HEAD;
            let (places, high) = self.places(nodes);
            for (node, place) in nodes.iter().zip(places) {
                self.node(area, (MARGIN + place.0, y + place.1), node)?;
            }
            y += high + 18;
        }
        if self.types.is_empty() {
            write_text(area, "no accelerators", (MARGIN, y), TEXT, PALE)?;
        }
        Ok(())
    }
}

/// Which accelerator is for whom: large replicas first, each in the first block that has room for it.
fn cells(placed: &Placed<'_>) -> Vec<Vec<Cell>> {
    let mut cells: Vec<Vec<Cell>> = placed.nodes.iter().map(|size| vec![None; *size as usize]).collect();
    let mut blocks = blocks(placed);
    let mut replicas: Vec<_> = placed.replicas.iter().filter(|(_, of, _)| of.count > 0 && of.tp > 0).collect();
    replicas.sort_by_key(|(model, of, _)| (std::cmp::Reverse(of.tp), *model));
    let mut number = 0;
    for (model, of, counted_in) in replicas {
        for _ in 0..of.count {
            number += 1;
            let mut missing = of.tp as usize;
            let is_of = |block: &Block| counted_in.is_none_or(|size| block.size == size as usize);
            let fits = |block: &Block| is_of(block) && block.size - block.taken >= of.tp as usize;
            let first = blocks.iter().position(fits);
            // Where none has room for all of it, it is wherever there is room.
            for block in blocks.iter_mut().skip(first.unwrap_or(0)) {
                let take = missing.min(block.size - block.taken);
                let begin = block.begin + block.taken;
                cells[block.node][begin..begin + take].fill(Some((*model, number)));
                block.taken += take;
                missing -= take;
                if missing == 0 {
                    break;
                }
            }
        }
    }
    cells
}

fn blocks(placed: &Placed<'_>) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (node, size) in placed.nodes.iter().enumerate() {
        let mut begin = 0;
        let mut left = *size as usize;
        for block in placed.blocks.iter().map(|block| *block as usize).filter(|block| *block > 0) {
            while left >= block {
                blocks.push(Block { node, begin, size: block, taken: 0 });
                (begin, left) = (begin + block, left - block);
            }
        }
        if left > 0 {
            blocks.push(Block { node, begin, size: left, taken: 0 });
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(nodes: &[u32], blocks: &[u32], replicas: &[(usize, u32, u32, Option<u32>)]) -> Vec<Vec<Cell>> {
        let replicas = replicas
            .iter()
            .map(|(model, tp, count, block)| (*model, Replicas { pool: 0, tp: *tp, count: *count }, *block));
        let (nodes, blocks) = (nodes.to_vec(), blocks.to_vec());
        cells(&Placed { accelerator: "H100", nodes, blocks, replicas: replicas.collect() })
    }

    #[test]
    fn replicas_are_inside_nodes_and_all_of_them_are_there() {
        let cells = placed(&[8, 8, 8], &[], &[(0, 1, 3, None), (1, 4, 3, None), (2, 8, 1, None)]);
        let model = |model| cells.iter().flatten().filter(|cell| cell.is_some_and(|(of, _)| of == model)).count();
        assert_eq!([model(0), model(1), model(2)], [3, 12, 8]);
        for replica in 1..=7 {
            let on: Vec<_> = cells.iter().filter(|node| node.iter().flatten().any(|(_, of)| *of == replica)).collect();
            assert_eq!(on.len(), 1, "{replica}: {cells:?}");
        }
    }

    #[test]
    fn nodes_as_they_are_have_blocks() {
        // A node of seven is a block of four, one of two and one of one.
        let cells = placed(&[7], &[4, 2, 1], &[(0, 1, 1, Some(1)), (1, 1, 1, Some(4)), (2, 2, 1, Some(2))]);
        let models: Vec<_> = cells[0].iter().map(|cell| cell.map(|(model, _)| model)).collect();
        assert_eq!(models, [Some(1), None, None, None, Some(2), Some(2), Some(0)]);
    }

    #[test]
    fn what_fits_into_no_node_is_shown_all_the_same() {
        let cells = placed(&[4, 4], &[], &[(0, 3, 2, None), (1, 2, 1, None)]);
        assert_eq!(cells.iter().flatten().flatten().count(), 8);
        assert!(placed(&[], &[], &[]).is_empty());
    }
}
