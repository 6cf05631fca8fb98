//! Order and pages.
//!
//! A cursor names the last element of a page by its place in the order, not by a count. So the next page begins where
//! this one has ended, whatever has come or gone in between: what is there all the time, and keeps its place, is
//! seen exactly once.

use super::query::{BadParameter, Parameters};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use std::{cmp::Ordering, fmt::Display, str::FromStr};

/// Elements of a page, at most and unless told otherwise.
const LIMIT_MAX: usize = 1_000;

/// The parameters that [`Paging::parse`] reads.
pub(super) const PARAMETERS: [&str; 3] = ["sort", "limit", "after"];

/// What elements are ordered by, before their id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum SortValue {
    /// By the id alone.
    Id,
    Number(u64),
    Text(String),
}

/// A place in an order: the order's name, the value, the id.
#[derive(Debug, Serialize, Deserialize)]
struct Cursor(String, SortValue, String);

/// Which page, in which order.
#[derive(Debug)]
pub(super) struct Paging<I> {
    key: String,
    descending: bool,
    limit: usize,
    after: Option<(SortValue, I)>,
}

/// One page of elements.
#[derive(Debug)]
pub(super) struct Page<T> {
    pub(super) elements: Vec<T>,
    /// Where the next page begins, unless this is the last one.
    pub(super) next: Option<String>,
    /// Number of elements on all pages.
    pub(super) total: usize,
}

impl<I: Ord + Display + FromStr> Paging<I> {
    /// Reads `sort`, one of `keys` (the first of them if not given), `limit` and `after`.
    pub(super) fn parse(parameters: &Parameters, keys: &[&str]) -> Result<Self, BadParameter> {
        let sort = parameters.single("sort")?.unwrap_or(keys[0]);
        let (key, descending) = sort.strip_prefix('-').map_or((sort, false), |key| (key, true));
        if !keys.contains(&key) {
            let allowed = format!("allowed are {}, each with - before it for the reverse", keys.join(", "));
            return Err(BadParameter::value("sort", sort, &allowed));
        }
        let limit = match parameters.single("limit")? {
            None => LIMIT_MAX,
            Some(text) => match text.parse() {
                Ok(limit @ 1..=LIMIT_MAX) => limit,
                _ => return Err(BadParameter::value("limit", text, &format!("allowed are 1 to {LIMIT_MAX}"))),
            },
        };
        let after = parameters.single("after")?.map(|text| {
            let allowed = "give `next` of the page before, with the same `sort`";
            decode(text, sort).ok_or_else(|| BadParameter::value("after", text, allowed))
        });
        Ok(Self { key: key.to_owned(), descending, limit, after: after.transpose()? })
    }

    /// What the elements are to be ordered by.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The page of `elements`.
    pub(super) fn page<T>(&self, mut elements: Vec<(SortValue, I, T)>) -> Page<T> {
        let total = elements.len();
        if let Some((value, id)) = &self.after {
            elements.retain(|(v, i, _)| self.order((v, i), (value, id)) == Ordering::Greater);
        }
        elements.sort_unstable_by(|(v, i, _), (w, j, _)| self.order((v, i), (w, j)));
        let more = elements.len() > self.limit;
        elements.truncate(self.limit);
        let next = elements.last().filter(|_| more).map(|(value, id, _)| self.encode(value, id));
        Page { elements: elements.into_iter().map(|(_, _, element)| element).collect(), next, total }
    }

    fn order(&self, one: (&SortValue, &I), other: (&SortValue, &I)) -> Ordering {
        if self.descending { other.cmp(&one) } else { one.cmp(&other) }
    }

    fn encode(&self, value: &SortValue, id: &I) -> String {
        let sort = if self.descending { format!("-{}", self.key) } else { self.key.clone() };
        let cursor = serde_json::to_vec(&Cursor(sort, value.clone(), id.to_string()));
        URL_SAFE_NO_PAD.encode(cursor.expect("strings and numbers are JSON"))
    }
}

/// None of ours is longer; and to read an id takes time by the square of its length.
const CURSOR_BYTES_MAX: usize = 8192;

fn decode<I: FromStr>(text: &str, sort: &str) -> Option<(SortValue, I)> {
    if text.len() > CURSOR_BYTES_MAX {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let Cursor(of, value, id) = serde_json::from_slice(&bytes).ok()?;
    (of == sort).then(|| Some((value, id.parse().ok()?)))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn paging(query: &str) -> Result<Paging<String>, BadParameter> {
        let uri = format!("/?{query}").parse().unwrap();
        Paging::parse(&Parameters::parse(&uri, &PARAMETERS).unwrap(), &["id", "size"])
    }

    fn elements(paging: &Paging<String>, of: &BTreeMap<String, u64>) -> Page<String> {
        let value = |size: &u64| if paging.key() == "size" { SortValue::Number(*size) } else { SortValue::Id };
        paging.page(of.iter().map(|(id, size)| (value(size), id.clone(), id.clone())).collect())
    }

    #[test]
    fn ties_are_broken_by_id_and_minus_is_the_exact_reverse() {
        let of = BTreeMap::from([("a".into(), 2), ("b".into(), 1), ("c".into(), 2), ("d".into(), 1)]);
        let ids = |query| elements(&paging(query).unwrap(), &of).elements.concat();
        assert_eq!(ids(""), "abcd");
        assert_eq!(ids("sort=-id"), "dcba");
        assert_eq!(ids("sort=size"), "bdac");
        assert_eq!(ids("sort=-size"), "cadb");
    }

    #[test]
    fn what_stays_is_seen_once_while_others_come_and_go() {
        for sort in ["id", "-id", "size", "-size"] {
            let mut of: BTreeMap<_, _> = (0..100).map(|n| (format!("stays-{n:03}"), n % 7)).collect();
            let (mut seen, mut after, mut round) = (Vec::new(), String::new(), 0);
            loop {
                of.retain(|id, _| !id.starts_with("comes"));
                of.extend((0..20).map(|n| (format!("comes-{round}-{n}"), n % 7)));
                let page = elements(&paging(&format!("sort={sort}&limit=9{after}")).unwrap(), &of);
                assert!(page.elements.len() <= 9 && page.total == 120);
                seen.extend(page.elements.into_iter().filter(|id| id.starts_with("stays")));
                round += 1;
                match page.next {
                    Some(next) => after = format!("&after={next}"),
                    None => break,
                }
            }
            assert_eq!(seen.len(), 100, "{sort}: once each");
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 100, "{sort}: every one");
        }
    }

    #[test]
    fn the_last_page_has_no_next() {
        let of = BTreeMap::from([("a".into(), 0), ("b".into(), 0)]);
        assert!(elements(&paging("limit=2").unwrap(), &of).next.is_none());
        assert!(elements(&paging("limit=1").unwrap(), &of).next.is_some());
        assert!(elements(&paging("").unwrap(), &BTreeMap::new()).next.is_none());
    }

    #[test]
    fn wrong_pages_are_named() {
        let of = BTreeMap::from([("a".into(), 0), ("b".into(), 0)]);
        let next = elements(&paging("limit=1").unwrap(), &of).next.unwrap();
        assert!(paging(&format!("after={next}")).is_ok());
        for (query, says) in [
            ("sort=colour", "sort=colour is not understood: allowed are id, size"),
            ("sort=--id", "sort=--id"),
            ("limit=0", "limit=0 is not understood: allowed are 1 to 1000"),
            ("limit=1001", "limit=1001"),
            ("limit=ten", "limit=ten"),
            ("after=x", "after=x is not understood: give `next`"),
            (&format!("after={next}&sort=size"), "after="),
        ] {
            let error = paging(query).unwrap_err().to_string();
            assert!(error.starts_with(says), "{query}: {error}");
        }
    }
}
