//! Which idle models make room: nothing if all of them together would not do, else the smallest single one that does,
//! else the set that costs the least. A pure function.

use crate::ledger::ModelId;
use crate::units::Bytes;

/// Up to so many models the cheapest set is found by looking at all of them.
const EXACT: usize = 16;

/// A resident model that might go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The model.
    pub model: ModelId,
    /// What it would free.
    pub frees: Bytes,
    /// How long it took to load, in milliseconds.
    pub reload_ms: u64,
    /// For how long nobody has used it; `None` while somebody does.
    pub idle_seconds: Option<u64>,
    /// Whether it stays whatever comes.
    pub is_pinned: bool,
}

impl Candidate {
    /// Tells whether it may go.
    pub fn may_go(&self) -> bool {
        self.idle_seconds.is_some() && !self.is_pinned
    }

    /// Returns what its going is expected to cost, in microseconds of waiting: its load, as likely as it is to be wanted
    /// again. Who was idle for a minute is wanted half as likely as who was used just now.
    pub fn expected_cost_us(&self) -> u64 {
        let idle_minutes_and_one = 60 + self.idle_seconds.unwrap_or(0);
        let weighed = u128::from(self.reload_ms) * 1000 * 60 / u128::from(idle_minutes_and_one);
        u64::try_from(weighed).unwrap_or(u64::MAX)
    }
}

/// Returns what all models that may go would free.
pub fn reclaimable(candidates: &[Candidate]) -> Bytes {
    candidates.iter().filter(|candidate| candidate.may_go()).map(|candidate| candidate.frees).sum()
}

/// Chooses who goes so that `shortfall` is freed; empty when nobody need go, `None` when all together would not do.
pub fn choose(candidates: &[Candidate], shortfall: Bytes) -> Option<Vec<ModelId>> {
    if shortfall == Bytes::ZERO {
        return Some(Vec::new());
    }
    let mut idle: Vec<&Candidate> =
        candidates.iter().filter(|candidate| candidate.may_go()).collect();
    // Nothing may depend on the order in which they were given.
    idle.sort_by(|one, other| one.model.cmp(&other.model));
    if reclaimable(candidates) < shortfall {
        return None;
    }
    let single = idle.iter().filter(|candidate| candidate.frees >= shortfall);
    let smallest = single.min_by_key(|candidate| (candidate.frees, candidate.expected_cost_us()));
    let chosen = match smallest {
        Some(single) => vec![*single],
        None if idle.len() <= EXACT => cheapest_set(&idle, shortfall),
        None => cheap_set(&idle, shortfall),
    };
    Some(chosen.into_iter().map(|candidate| candidate.model.clone()).collect())
}

/// Looks at every set.
fn cheapest_set<'a>(idle: &[&'a Candidate], shortfall: Bytes) -> Vec<&'a Candidate> {
    let members = |set: u32| {
        let is_member = move |index: &usize| set & (1 << index) != 0;
        (0..idle.len()).filter(is_member).map(|index| idle[index])
    };
    let sets = (1u32..1 << idle.len())
        .filter(|set| members(*set).map(|candidate| candidate.frees).sum::<Bytes>() >= shortfall);
    let cost = |set: &u32| {
        let cost: u64 = members(*set).map(Candidate::expected_cost_us).fold(0, u64::saturating_add);
        (cost, set.count_ones(), *set)
    };
    sets.min_by_key(cost).map(|set| members(set).collect()).unwrap_or_default()
}

/// Takes the cheapest byte first, then leaves out whoever turned out not to be needed.
fn cheap_set<'a>(idle: &[&'a Candidate], shortfall: Bytes) -> Vec<&'a Candidate> {
    let mut by_price = idle.to_vec();
    by_price.sort_by(|one, other| {
        let price = |cost: &Candidate, size: &Candidate| {
            u128::from(cost.expected_cost_us()) * u128::from(size.frees.get())
        };
        price(one, other).cmp(&price(other, one))
    });
    let mut chosen: Vec<&Candidate> = Vec::new();
    let freed = |set: &[&Candidate]| -> Bytes { set.iter().map(|candidate| candidate.frees).sum() };
    for candidate in by_price {
        if freed(&chosen) >= shortfall {
            break;
        }
        chosen.push(candidate);
    }
    for index in (0..chosen.len()).rev() {
        let spare = chosen.remove(index);
        if freed(&chosen) < shortfall {
            chosen.insert(index, spare);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Candidate, choose, reclaimable};
    use crate::ledger::ModelId;
    use crate::units::Bytes;

    fn candidate(name: &str, mib: u64, reload_ms: u64, idle_seconds: Option<u64>) -> Candidate {
        Candidate {
            model: ModelId::new(name),
            frees: Bytes::from_mib(mib),
            reload_ms,
            idle_seconds,
            is_pinned: false,
        }
    }

    fn check(candidates: &[Candidate], shortfall_mib: u64, expected: Option<&[&str]>) {
        let chosen = choose(candidates, Bytes::from_mib(shortfall_mib));
        let chosen = chosen
            .map(|models| models.iter().map(|model| model.as_str().to_owned()).collect::<Vec<_>>());
        assert_eq!(
            chosen.as_deref(),
            expected
                .map(|names| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>())
                .as_deref()
        );
    }

    #[test]
    fn the_smallest_one_that_covers_it_goes() {
        let all = [
            candidate("a", 4000, 10, Some(900)),
            candidate("b", 1500, 9000, Some(1)),
            candidate("c", 1000, 1, Some(900)),
        ];
        check(&all, 1200, Some(&["b"]));
        check(&all, 1000, Some(&["c"]));
        check(&all, 0, Some(&[]));
    }

    #[test]
    fn otherwise_the_set_that_costs_least_goes() {
        let all = [
            candidate("a", 1000, 5000, Some(0)),
            candidate("b", 1000, 1000, Some(0)),
            candidate("c", 1000, 1500, Some(0)),
        ];
        check(&all, 1900, Some(&["b", "c"]));
        let long_idle = [all[0].clone(), all[1].clone(), candidate("a2", 1000, 5000, Some(3600))];
        check(&long_idle, 1900, Some(&["a2", "b"]));
    }

    #[test]
    fn nobody_goes_when_all_together_would_not_do() {
        let mut all = vec![candidate("a", 1000, 1, Some(5)), candidate("b", 1000, 1, None)];
        check(&all, 1001, None);
        all[0].is_pinned = true;
        check(&all, 1, None);
    }

    proptest! {
        #[test]
        fn who_goes_frees_enough_is_idle_and_nobody_goes_in_vain(
            sizes in proptest::collection::vec((1u64..5000, 0u64..10_000, proptest::option::of(0u64..5000), any::<bool>()), 0..24),
            shortfall in 0u64..40_000,
        ) {
            let all: Vec<Candidate> = sizes.into_iter().enumerate().map(|(index, (mib, reload, idle, is_pinned))| {
                Candidate { is_pinned, ..candidate(&format!("m{index:02}"), mib, reload, idle) }
            }).collect();
            let shortfall = Bytes::from_mib(shortfall);
            let Some(chosen) = choose(&all, shortfall) else {
                prop_assert!(reclaimable(&all) < shortfall);
                return Ok(());
            };
            let freed = |without: Option<usize>| -> Bytes {
                let kept = chosen.iter().enumerate().filter(|(index, _)| Some(*index) != without);
                kept.map(|(_, model)| all.iter().find(|one| one.model == *model).unwrap())
                    .inspect(|candidate| assert!(candidate.idle_seconds.is_some() && !candidate.is_pinned))
                    .map(|candidate| candidate.frees)
                    .sum()
            };
            prop_assert!(freed(None) >= shortfall);
            for index in 0..chosen.len() {
                prop_assert!(freed(Some(index)) < shortfall, "one of them goes in vain");
            }
            let mut backwards = all.clone();
            backwards.reverse();
            prop_assert_eq!(choose(&backwards, shortfall), Some(chosen));
        }
    }
}
