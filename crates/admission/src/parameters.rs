//! Numbers of parameters as people write them: `4B`, `600M`, `8x7B`, `26B-A4B`, `30B (128 experts, 3B active)`.
//!
//! Invariant: both numbers are finite and above zero; a text that says neither is no number, never zero.

/// Weights that a billion parameters take where nothing better is known.
pub const MB_PER_BILLION: f64 = 600.0;

/// How many parameters a model has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// All of them, in billions; for `8x7B` the upper bound 56.
    pub total_billions: f64,
    /// Those that one token uses, in billions; all of them where the text does not say.
    pub active_billions: f64,
}

impl Parameters {
    /// Reads a declared number of parameters; `None` where the text does not begin with a positive number.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let (total_billions, rest) = leading_total(&text)?;
        let active = active_by_suffix(rest).or_else(|| active_in_parentheses(rest));
        let active_billions = active.filter(|active| *active <= total_billions);
        Some(Self { total_billions, active_billions: active_billions.unwrap_or(total_billions) })
    }

    /// Guesses from the size of a download; `None` for an empty one.
    pub fn from_size_mb(size_mb: u64) -> Option<Self> {
        if size_mb == 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a guess with far fewer than 53 good bits")]
        let billions = (size_mb as f64 / MB_PER_BILLION).max(0.1);
        Some(Self { total_billions: billions, active_billions: billions })
    }

    /// Returns the MiB that this many weights take at 600 MiB a billion, rounded up.
    pub fn heuristic_weights_mb(self) -> u64 {
        whole_at_least(MB_PER_BILLION * self.total_billions)
    }
}

/// Returns the smallest whole number that is not below `value`; the largest one where there is none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is what a size that fits nowhere needs"
)]
pub(crate) fn whole_at_least(value: f64) -> u64 {
    value.ceil() as u64
}

/// Reads `4b`, `7 million`, `1,000m` or `8x7b` from the front; returns billions and what follows the unit.
fn leading_total(text: &str) -> Option<(f64, &str)> {
    let (first, rest) = leading_number(text)?;
    let (count, rest) = match rest.strip_prefix(['x', '×']).and_then(leading_number) {
        Some((each, rest)) => (first * each, rest),
        None => (first, rest),
    };
    let (per_billion, rest) = unit(rest);
    let billions = count * per_billion.unwrap_or(1.0);
    (billions.is_finite() && billions > 0.0).then_some((billions, rest))
}

/// Reads a number that a unit or nothing follows, as in `3b` or `600m`.
fn billions_with_unit(text: &str) -> Option<f64> {
    let (count, rest) = leading_number(text)?;
    let (per_billion, after) = unit(rest);
    let billions = count * per_billion.or_else(|| rest.trim().is_empty().then_some(1.0))?;
    let ends = !after.starts_with(|c: char| c.is_ascii_alphanumeric());
    (ends && billions.is_finite() && billions > 0.0).then_some(billions)
}

/// Splits digits and dots from the front; commas count where exactly three digits follow each.
fn leading_number(text: &str) -> Option<(f64, &str)> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let mut end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let mut digits = text[..end].to_owned();
    while let Some(group) = text[end..].strip_prefix(',') {
        let length = group.find(|c| !is_part(c)).unwrap_or(group.len());
        if digits.is_empty() || length != 3 || group[..length].contains('.') {
            break;
        }
        digits.push_str(&group[..length]);
        end += 1 + length;
    }
    Some((digits.parse().ok()?, &text[end..]))
}

/// Returns how many billions one of the unit is, where the text begins with one, and what follows its first letter.
fn unit(text: &str) -> (Option<f64>, &str) {
    let text = text.trim_start();
    let per_billion = match text.chars().next() {
        Some('b') => 1.0,
        Some('m') => 1e-3,
        Some('k') => 1e-6,
        Some('t') if text.starts_with("thousand") => 1e-6,
        Some('t') => 1e3,
        _ => return (None, text),
    };
    (Some(per_billion), &text[1..])
}

/// Reads the `-a4b` of `26b-a4b`.
fn active_by_suffix(rest: &str) -> Option<f64> {
    billions_with_unit(rest.trim_start_matches(['-', '_', ' ']).strip_prefix('a')?)
}

/// Reads the first parenthesis: `(3b active)`, `(128 experts, 3b active)`, `(a3b)`.
fn active_in_parentheses(rest: &str) -> Option<f64> {
    let (_, inside) = rest.split_once('(')?;
    let inside = inside.split(')').next().unwrap_or(inside);
    inside.split([',', ';']).map(str::trim).find_map(|part| {
        let before_active = part.find("active").map(|at| &part[..at]);
        billions_with_unit(before_active.or_else(|| part.strip_prefix('a'))?)
    })
}
