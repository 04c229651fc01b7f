//! The clock of a template: `strftime_now`.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

/// A moment on a calendar and a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// Year of the common era.
    year: i64,
    /// 1 to 12.
    month: u32,
    /// 1 to 31.
    day: u32,
    /// Seconds since midnight.
    second_of_day: u32,
    /// Days since 1970-01-01.
    days: i64,
}

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
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl LocalTime {
    /// The moment `seconds` after 1970-01-01 00:00 of the place's own time: for local time add its offset to UTC.
    pub fn from_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400);
        let second_of_day = u32::try_from(seconds.rem_euclid(86_400)).unwrap_or(0);
        // Days are counted from 0000-03-01, so that a leap day is the last of its year; 400 years have 146,097 days.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        LocalTime {
            year: year_of_era + 400 * era + i64::from(month <= 2),
            month: u32::try_from(month).unwrap_or(1),
            day: u32::try_from(day).unwrap_or(1),
            second_of_day,
            days,
        }
    }

    /// The system's clock, in UTC.
    pub fn now_utc() -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self::from_unix(i64::try_from(seconds).unwrap_or(0))
    }

    /// As RFC 3339 writes a moment in UTC: `2026-12-01T09:30:00Z`.
    pub fn rfc3339(&self) -> String {
        let (hours, minutes, seconds) =
            (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let LocalTime { year, month, day, .. } = self;
        format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
    }

    /// Days since the first of January.
    fn day_of_year(&self) -> i64 {
        let leap = self.year % 4 == 0 && self.year % 100 != 0 || self.year % 400 == 0;
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][self.month as usize - 1];
        before + i64::from(self.day) - 1 + i64::from(leap && self.month > 2)
    }

    /// The moment in the form that `format` asks for, as C's `strftime` in its own locale.
    pub(super) fn strftime(&self, format: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let directive = chars.next();
            let plain = directive == Some('-');
            match if plain { chars.next() } else { directive } {
                Some(directive) => out.push_str(&self.directive(directive, plain)?),
                None => out.push('%'),
            }
        }
        Ok(out)
    }

    /// One directive; `plain` leaves out leading zeros.
    fn directive(&self, directive: char, plain: bool) -> Result<String, Error> {
        let two = |value: i64| if plain { value.to_string() } else { format!("{value:02}") };
        let (hour, minute) = (i64::from(self.second_of_day / 3600), i64::from(self.second_of_day / 60 % 60));
        let month = MONTHS[self.month as usize - 1];
        let weekday_number = (self.days + 4).rem_euclid(7);
        let weekday = WEEKDAYS[usize::try_from(weekday_number).unwrap_or(0)];
        let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
        Ok(match directive {
            'Y' => self.year.to_string(),
            'y' => two(self.year.rem_euclid(100)),
            'C' => two(self.year.div_euclid(100)),
            'm' => two(i64::from(self.month)),
            'd' => two(i64::from(self.day)),
            'e' => {
                if plain {
                    self.day.to_string()
                } else {
                    format!("{:2}", self.day)
                }
            }
            'H' => two(hour),
            'I' => two(hour12),
            'M' => two(minute),
            'S' => two(i64::from(self.second_of_day % 60)),
            'j' => {
                if plain {
                    (self.day_of_year() + 1).to_string()
                } else {
                    format!("{:03}", self.day_of_year() + 1)
                }
            }
            'f' => "000000".to_owned(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'w' => weekday_number.to_string(),
            'u' => (if weekday_number == 0 { 7 } else { weekday_number }).to_string(),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'z' | 'Z' => String::new(),
            'F' => self.strftime("%Y-%m-%d")?,
            'T' | 'X' => self.strftime("%H:%M:%S")?,
            'R' => self.strftime("%H:%M")?,
            'D' | 'x' => self.strftime("%m/%d/%y")?,
            'r' => self.strftime("%I:%M:%S %p")?,
            'c' => self.strftime("%a %b %e %H:%M:%S %Y")?,
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            other => {
                let message = format!("strftime_now does not know the directive %{other}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        })
    }
}
