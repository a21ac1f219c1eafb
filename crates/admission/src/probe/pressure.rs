//! How long programs had to wait for memory lately, and whether that is reason to load nothing new.

use std::path::Path;

use serde::Serialize;

use super::text;

/// Per cent of the last ten seconds in which some task waited for memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Pressure {
    /// In this process's own control group, where it is told.
    pub own: Option<f64>,
    /// In the whole system, where it is told.
    pub host: Option<f64>,
}

impl Pressure {
    /// Returns what counts: that of the own group, and the system's only where there is no own.
    pub fn counted(&self) -> Option<f64> {
        self.own.or(self.host)
    }
}

/// Holds new loads while there is pressure. It lets go only clearly below the point at which it began to hold, so that
/// it does not flutter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    above: f64,
    until_below: f64,
    is_holding: bool,
}

impl Gate {
    /// Makes a gate that holds above one percentage and lets go below another, which is not higher.
    ///
    /// # Panics
    /// Where the lower is higher than the upper, or one is not a number.
    pub fn new(above: f64, until_below: f64) -> Self {
        assert!(until_below <= above, "a gate lets go below the point at which it holds");
        Self { above, until_below, is_holding: false }
    }

    /// Takes a reading and says whether new loads are held. Without a reading nothing is: nothing could ever let go.
    pub fn observe(&mut self, percent: Option<f64>) -> bool {
        self.is_holding = percent.is_some_and(|percent| {
            if self.is_holding { percent >= self.until_below } else { percent > self.above }
        });
        self.is_holding
    }

    /// Says whether new loads are held.
    pub fn is_holding(&self) -> bool {
        self.is_holding
    }
}

/// Reads the percentage from a file; `None` where it is not told.
pub(super) fn read(path: &Path, warnings: &mut Vec<String>) -> Option<f64> {
    let text = text::read(path, warnings)?;
    let percent = some_avg10(&text);
    if percent.is_none() {
        warnings.push(format!("{} does not tell the pressure", path.display()));
    }
    percent
}

fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = line.split(' ').find_map(|word| word.strip_prefix("avg10="))?;
    value.parse().ok().filter(|percent| (0.0..=100.0).contains(percent))
}
