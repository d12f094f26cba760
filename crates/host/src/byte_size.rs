//! Parses and formats sizes in bytes with a unit, for example `512MiB` or `4G`.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A number of bytes, which is parsed from and formatted as a number with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// The units in ascending order. Each unit is 1024 times the unit before it.
const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// Why a text is not a valid size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSize {
    /// There is no number or no unit, or the unit is unknown.
    #[error("must be a whole number and a unit")]
    NoSize,
    /// The size is zero, or the number of bytes does not fit into a `u64`.
    #[error("is out of range")]
    OutOfRange,
}

impl FromStr for ByteSize {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let shift: u32 = match unit.trim_start() {
            "K" | "k" | "KiB" => 10,
            "M" | "m" | "MiB" => 20,
            "G" | "g" | "GiB" => 30,
            "T" | "t" | "TiB" => 40,
            _ => return Err(BadSize::NoSize),
        };
        if number.is_empty() {
            return Err(BadSize::NoSize);
        }
        number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(1 << shift))
            .filter(|bytes| *bytes > 0)
            .map(Self)
            .ok_or(BadSize::OutOfRange)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut number = self.0;
        let mut unit = 0;
        while number.is_multiple_of(1024) && number > 0 && unit + 1 < UNITS.len() {
            number /= 1024;
            unit += 1;
        }
        write!(f, "{number}{}", UNITS[unit])
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_need_a_unit() {
        for (text, wanted) in [
            ("512MiB", Ok(512 << 20)),
            ("4G", Ok(4 << 30)),
            ("4 GiB", Ok(4 << 30)),
            ("1024k", Ok(1 << 20)),
            ("4", Err(BadSize::NoSize)),
            ("4GB", Err(BadSize::NoSize)),
            ("-4G", Err(BadSize::NoSize)),
            ("1.5G", Err(BadSize::NoSize)),
            ("G", Err(BadSize::NoSize)),
            ("", Err(BadSize::NoSize)),
            ("0G", Err(BadSize::OutOfRange)),
            ("99999999999T", Err(BadSize::OutOfRange)),
        ] {
            assert_eq!(text.parse(), wanted.map(ByteSize), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_size_prints_as_what_it_was(number in 1u64..1 << 20, unit in 1usize..5) {
            let size: ByteSize = format!("{number}{}", UNITS[unit]).parse().expect("size");
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }
    }
}
