//! Sizes and durations as people type them.

use std::time::Duration;

use toko_admission::units::Bytes;

/// Reads a size such as `512MB`, `12.5GB` or `3 GiB`; every unit is a power of 1024 bytes.
pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    let expected = || "must be a size with its unit, such as 512MB or 12.5GB".to_owned();
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(expected)?;
    let (number, unit) = text.split_at(end);
    let unit_bytes: u128 = match unit.trim().to_ascii_lowercase().as_str() {
        "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(expected()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Nine digits tell single bytes of a GB apart.
    if whole.is_empty() || whole.len() > 20 || fraction.len() > 9 || fraction.contains('.') {
        return Err(expected());
    }
    let parse = |digits: &str| digits.parse::<u128>().map_err(|_| expected());
    let scale = (0..fraction.len()).fold(1, |scale: u128, _| scale * 10);
    let fraction = if fraction.is_empty() { 0 } else { parse(fraction)? };
    let bytes = parse(whole)? * unit_bytes + fraction * unit_bytes / scale;
    u64::try_from(bytes).map(Bytes::new).map_err(|_| "is more than any machine has".to_owned())
}

/// Reads how long an idle model stays: seconds, or `5m`, `1.5h`; `-1` is for good.
pub(crate) fn keep_alive(text: &str) -> Result<KeepAlive, String> {
    let expected =
        || "must be a duration such as 90s, 5m or 2h, 0 for not at all, or -1 for good".to_owned();
    let text = text.trim();
    if text == "-1" {
        return Ok(KeepAlive(None));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit_seconds = match unit.trim() {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(expected()),
    };
    let seconds = number.parse::<f64>().map_err(|_| expected())? * unit_seconds;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| expected())?;
    Ok(KeepAlive(Some(duration)))
}

/// How long an idle model stays; none is for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeepAlive(pub(crate) Option<Duration>);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use toko_admission::units::Bytes;

    use super::{KeepAlive, bytes, keep_alive};

    #[test]
    fn sizes_have_binary_units() {
        for (text, expected) in [
            ("0B", 0),
            ("512MB", 512 << 20),
            ("512 mib", 512 << 20),
            ("12.5GB", 25 << 29),
            ("0.5k", 512),
            ("1.000000001GB", (1 << 30) + 1),
            ("16777215T", 16_777_215 << 40),
            ("18446744073709551615B", u64::MAX),
        ] {
            assert_eq!(bytes(text), Ok(Bytes::new(expected)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "512", "MB", ".5GB", "1.2.3GB", "-1GB", "1e3MB", "12 parsecs", "1,5GB"] {
            assert!(bytes(text).unwrap_err().contains("512MB"), "{text}");
        }
        assert!(bytes("16777216T").unwrap_err().contains("more than any machine"));
        assert!(bytes("18446744073709551616B").unwrap_err().contains("more than any machine"));
    }

    #[test]
    fn a_model_stays_for_a_time_or_for_good() {
        let seconds = |seconds| Ok(KeepAlive(Some(Duration::from_secs(seconds))));
        assert_eq!(keep_alive("0"), seconds(0));
        assert_eq!(keep_alive("90"), seconds(90));
        assert_eq!(keep_alive("1.5h"), seconds(5400));
        assert_eq!(keep_alive(" 5m "), seconds(300));
        assert_eq!(keep_alive("-1"), Ok(KeepAlive(None)));
        for text in ["", "m", "-2", "5 weeks", "1e400", "99999999999999999999d"] {
            assert!(keep_alive(text).is_err(), "{text}");
        }
    }
}
