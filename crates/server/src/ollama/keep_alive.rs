//! For how long a model stays when nobody uses it, as clients write it: seconds, or a duration of Go's such as `1h30m`.

use std::time::Duration;

use serde_json::Value;

/// For how long a model is to stay when nobody uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepAlive {
    /// As long as its memory is not needed.
    Forever,
    /// No longer than this.
    For(Duration),
}

impl KeepAlive {
    /// Reads a number of seconds or a duration; anything below zero is for ever.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let seconds = match value {
            Value::Number(seconds) => seconds.as_f64()?,
            Value::String(text) => seconds(text)?,
            _ => return None,
        };
        if seconds < 0.0 {
            return Some(Self::Forever);
        }
        // What no clock can count is as good as for ever.
        Some(Duration::try_from_secs_f64(seconds).map_or(Self::Forever, Self::For))
    }

    /// Returns the time, where there is one.
    pub(super) fn limit(self) -> Option<Duration> {
        match self {
            Self::Forever => None,
            Self::For(limit) => Some(limit),
        }
    }
}

fn seconds(text: &str) -> Option<f64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_of_a_number = |sign: char| sign.is_ascii_digit() || sign == '.';
    let (mut sum, mut rest) = (0.0, digits);
    if !rest.starts_with(is_of_a_number) {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|sign| !is_of_a_number(sign)).unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.find(is_of_a_number).unwrap_or(rest.len());
        sum += number * unit_seconds(&rest[..end])?;
        rest = &rest[end..];
    }
    Some(sign * sum)
}

fn unit_seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::KeepAlive;

    #[test]
    fn seconds_and_durations_are_read() {
        let of = |milliseconds| Some(KeepAlive::For(Duration::from_millis(milliseconds)));
        let cases: [(Value, Option<KeepAlive>); 14] = [
            (json!(0), of(0)),
            (json!("0"), of(0)),
            (json!("0s"), of(0)),
            (json!(300), of(300_000)),
            (json!(1.5), of(1500)),
            (json!("5m"), of(300_000)),
            (json!("1h30m"), of(5_400_000)),
            (json!("1.5h"), of(5_400_000)),
            (json!("300ms"), of(300)),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("-1m"), Some(KeepAlive::Forever)),
            (json!(1e300), Some(KeepAlive::Forever)),
            (json!("5 minutes"), None),
            (json!(""), None),
        ];
        for (written, expected) in cases {
            assert_eq!(KeepAlive::read(&written), expected, "{written}");
        }
        for written in [json!("m"), json!("1.2.3s"), json!("-"), json!([1]), json!("5m-1s")] {
            assert_eq!(KeepAlive::read(&written), None, "{written}");
        }
    }
}
