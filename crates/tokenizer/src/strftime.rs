//! Dates for `strftime_now`, in UTC.
//!
//! Invariant: the codes and English names are those of C's `strftime` in the C locale; an unknown code stays as it is.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// One moment, taken apart.
struct Moment {
    seconds: i64,
    micros: u32,
    year: i64,
    /// From 1.
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    /// From 0, Sunday.
    weekday: i64,
    /// From 0.
    day_of_year: i64,
}

/// Formats the time by the codes of C's `strftime`.
pub(crate) fn format(time: SystemTime, pattern: &str) -> String {
    let moment = Moment::new(time);
    let mut out = String::with_capacity(pattern.len() * 2);
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut flag = None;
        let mut code = rest.next();
        if let Some(found @ ('-' | '_' | '0' | '^')) = code {
            flag = Some(found);
            code = rest.next();
        }
        match code {
            Some(code) => moment.write(code, flag, &mut out),
            None => out.push('%'),
        }
    }
    out
}

impl Moment {
    fn new(time: SystemTime) -> Self {
        let (seconds, micros) = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => {
                (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_micros())
            }
            Err(before) => (-i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX), 0),
        };
        let days = seconds.div_euclid(86_400);
        let in_day = seconds.rem_euclid(86_400);
        let (year, month, day) = civil(days);
        Self {
            seconds,
            micros,
            year,
            month,
            day,
            hour: in_day / 3600,
            minute: in_day / 60 % 60,
            second: in_day % 60,
            weekday: (days + 4).rem_euclid(7),
            day_of_year: days - days_before(year),
        }
    }

    fn write(&self, code: char, flag: Option<char>, out: &mut String) {
        let hour12 = (self.hour + 11) % 12 + 1;
        let (number, width, pad): (i64, usize, char) = match code {
            'd' => (self.day, 2, '0'),
            'e' => (self.day, 2, ' '),
            'm' => (self.month, 2, '0'),
            'H' => (self.hour, 2, '0'),
            'k' => (self.hour, 2, ' '),
            'I' => (hour12, 2, '0'),
            'l' => (hour12, 2, ' '),
            'M' => (self.minute, 2, '0'),
            'S' => (self.second, 2, '0'),
            'f' => (i64::from(self.micros), 6, '0'),
            'j' => (self.day_of_year + 1, 3, '0'),
            'y' => (self.year.rem_euclid(100), 2, '0'),
            'C' => (self.year.div_euclid(100), 2, '0'),
            'Y' => (self.year, 1, '0'),
            's' => (self.seconds, 1, '0'),
            'u' => ((self.weekday + 6) % 7 + 1, 1, '0'),
            'w' => (self.weekday, 1, '0'),
            'U' => ((self.day_of_year + 7 - self.weekday) / 7, 2, '0'),
            'W' => ((self.day_of_year + 7 - (self.weekday + 6) % 7) / 7, 2, '0'),
            'V' => (self.iso_week().1, 2, '0'),
            'G' => (self.iso_week().0, 1, '0'),
            'g' => (self.iso_week().0.rem_euclid(100), 2, '0'),
            _ => return self.write_text(code, flag, out),
        };
        let (width, pad) = match flag {
            Some('-') => (1, pad),
            Some('_') => (width, ' '),
            Some('0') => (width, '0'),
            _ => (width, pad),
        };
        let digits = number.to_string();
        out.extend(std::iter::repeat_n(pad, width.saturating_sub(digits.len())));
        out.push_str(&digits);
    }

    fn write_text(&self, code: char, flag: Option<char>, out: &mut String) {
        let name = |names: &[&'static str], index: i64| {
            usize::try_from(index).map_or("", |index| names[index])
        };
        let start = out.len();
        match code {
            'a' => out.push_str(&name(&DAYS, self.weekday)[..3]),
            'A' => out.push_str(name(&DAYS, self.weekday)),
            'b' | 'h' => out.push_str(&name(&MONTHS, self.month - 1)[..3]),
            'B' => out.push_str(name(&MONTHS, self.month - 1)),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'P' => out.push_str(if self.hour < 12 { "am" } else { "pm" }),
            'D' | 'x' => self.write_all("%m/%d/%y", out),
            'F' => self.write_all("%Y-%m-%d", out),
            'R' => self.write_all("%H:%M", out),
            'T' | 'X' => self.write_all("%H:%M:%S", out),
            'r' => self.write_all("%I:%M:%S %p", out),
            'c' => self.write_all("%a %b %e %H:%M:%S %Y", out),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            // A time without a zone, as templates ask for it, has neither name nor offset.
            'Z' | 'z' => {}
            _ => {
                out.push('%');
                out.extend(flag);
                out.push(code);
            }
        }
        if flag == Some('^') {
            let upper = out[start..].to_uppercase();
            out.truncate(start);
            out.push_str(&upper);
        }
    }

    fn write_all(&self, pattern: &str, out: &mut String) {
        let mut rest = pattern.chars();
        while let Some(character) = rest.next() {
            match (character, character == '%') {
                (_, true) => {
                    if let Some(code) = rest.next() {
                        self.write(code, None, out);
                    }
                }
                (character, false) => out.push(character),
            }
        }
    }

    /// Returns the year and the week by ISO 8601: weeks begin on Monday, the first one holds 4 January.
    fn iso_week(&self) -> (i64, i64) {
        let monday_based = (self.weekday + 6) % 7;
        let week = (self.day_of_year - monday_based + 10) / 7;
        if week < 1 {
            return (self.year - 1, weeks_in(self.year - 1));
        }
        if week > weeks_in(self.year) { (self.year + 1, 1) } else { (self.year, week) }
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Returns the number of ISO weeks in the year: 53 when it begins on a Thursday, or on a Wednesday in a leap year.
fn weeks_in(year: i64) -> i64 {
    let first_weekday = (days_before(year) + 4).rem_euclid(7);
    if first_weekday == 4 || (first_weekday == 3 && is_leap(year)) { 53 } else { 52 }
}

/// Returns the days from 1 January 1970 to 1 January of the year.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400) - 719_162
}

/// Returns year, month and day of a day counted from 1 January 1970.
fn civil(days: i64) -> (i64, i64, i64) {
    // An average year is at most a day off, so the guess is at most a year off.
    let mut year = 1970 + (days * 400).div_euclid(146_097);
    while days_before(year) > days {
        year -= 1;
    }
    while days_before(year + 1) <= days {
        year += 1;
    }
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut day = days - days_before(year);
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Each text is what `date -u -d @SECONDS +PATTERN` prints.
    #[test]
    fn dates_are_what_the_date_command_prints() {
        let pattern = "%Y-%m-%d %H:%M:%S %a %A %b %B %j %U %W %G %V %g %u %w %y %C %I %p %e %-d %_H %^a %D %F %T %R %s";
        for (seconds, text) in CASES {
            assert_eq!(&format(UNIX_EPOCH + Duration::from_secs(*seconds), pattern), text);
        }
    }

    #[test]
    fn unknown_codes_and_a_lone_percent_sign_stay() {
        assert_eq!(format(UNIX_EPOCH, "%% %Q %-Q 100%"), "% %Q %-Q 100%");
    }

    const CASES: &[(u64, &str)] = &[
        (
            0,
            "1970-01-01 00:00:00 Thu Thursday Jan January 001 00 00 1970 01 70 4 4 70 19 12 AM  1 1  0 THU 01/01/70 1970-01-01 00:00:00 00:00 0",
        ),
        (
            951_782_400,
            "2000-02-29 00:00:00 Tue Tuesday Feb February 060 09 09 2000 09 00 2 2 00 20 12 AM 29 29  0 TUE 02/29/00 2000-02-29 00:00:00 00:00 951782400",
        ),
        (
            1_230_768_000,
            "2009-01-01 00:00:00 Thu Thursday Jan January 001 00 00 2009 01 09 4 4 09 20 12 AM  1 1  0 THU 01/01/09 2009-01-01 00:00:00 00:00 1230768000",
        ),
        (
            1_293_839_999,
            "2010-12-31 23:59:59 Fri Friday Dec December 365 52 52 2010 52 10 5 5 10 20 11 PM 31 31 23 FRI 12/31/10 2010-12-31 23:59:59 23:59 1293839999",
        ),
        (
            1_609_459_199,
            "2020-12-31 23:59:59 Thu Thursday Dec December 366 52 52 2020 53 20 4 4 20 20 11 PM 31 31 23 THU 12/31/20 2020-12-31 23:59:59 23:59 1609459199",
        ),
        (
            1_609_459_200,
            "2021-01-01 00:00:00 Fri Friday Jan January 001 00 00 2020 53 20 5 5 21 20 12 AM  1 1  0 FRI 01/01/21 2021-01-01 00:00:00 00:00 1609459200",
        ),
        (
            1_704_067_200,
            "2024-01-01 00:00:00 Mon Monday Jan January 001 00 01 2024 01 24 1 1 24 20 12 AM  1 1  0 MON 01/01/24 2024-01-01 00:00:00 00:00 1704067200",
        ),
        (
            1_735_689_599,
            "2024-12-31 23:59:59 Tue Tuesday Dec December 366 52 53 2025 01 25 2 2 24 20 11 PM 31 31 23 TUE 12/31/24 2024-12-31 23:59:59 23:59 1735689599",
        ),
        (
            1_796_055_728,
            "2026-11-30 16:22:08 Mon Monday Nov November 334 48 48 2026 49 26 1 1 26 20 04 PM 30 30 16 MON 11/30/26 2026-11-30 16:22:08 16:22 1796055728",
        ),
        (
            4_102_444_800,
            "2100-01-01 00:00:00 Fri Friday Jan January 001 00 00 2099 53 99 5 5 00 21 12 AM  1 1  0 FRI 01/01/00 2100-01-01 00:00:00 00:00 4102444800",
        ),
    ];
}
