//! Numbers as people type them: each parser says which values it takes.

use std::ops::RangeInclusive;

/// Returns a parser for a decimal number inside `range`, ends included.
pub(crate) fn between(
    range: RangeInclusive<f32>,
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let expected = || format!("must be a number from {} to {}", range.start(), range.end());
        let value: f32 = text.trim().parse().map_err(|_| expected())?;
        if range.contains(&value) { Ok(value) } else { Err(expected()) }
    }
}

/// Returns a parser for a whole number inside `range`, ends included.
pub(crate) fn whole(
    range: RangeInclusive<usize>,
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| {
        let expected = || match (*range.start(), *range.end()) {
            (start, usize::MAX) => format!("must be a whole number, at least {start}"),
            (start, end) => format!("must be a whole number from {start} to {end}"),
        };
        let value: usize = text.trim().parse().map_err(|_| expected())?;
        if range.contains(&value) { Ok(value) } else { Err(expected()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{between, whole};

    #[test]
    fn both_ends_of_a_range_are_inside() {
        let parse = between(0.0..=2.0);
        assert_eq!(parse("0"), Ok(0.0));
        assert_eq!(parse(" 2.0 "), Ok(2.0));
        assert_eq!(parse(".5"), Ok(0.5));
    }

    #[test]
    fn what_is_not_a_number_in_the_range_is_refused_with_the_range() {
        let parse = between(-2.0..=2.0);
        for text in ["2.1", "-2.0001", "nan", "inf", "-inf", "", "0,5", "1e99", "warm"] {
            assert_eq!(parse(text), Err("must be a number from -2 to 2".to_owned()), "{text:?}");
        }
    }

    #[test]
    fn whole_numbers_refuse_signs_fractions_and_overflow() {
        let parse = whole(1..=usize::MAX);
        assert_eq!(parse("17"), Ok(17));
        for text in ["0", "-1", "1.5", "", "99999999999999999999999", "ten"] {
            let expected = Err("must be a whole number, at least 1".to_owned());
            assert_eq!(parse(text), expected, "{text:?}");
        }
        assert_eq!(whole(1..=64)("65"), Err("must be a whole number from 1 to 64".to_owned()));
    }
}
