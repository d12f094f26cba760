//! Parses the three kinds of variable-length numbers of a pack (gitformat-pack(5)) byte by byte.

/// A number whose bytes contain seven bits each, the lowest bits first. The sizes in a delta have this form. The size
/// in an object's header has this form after the header's first byte.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Size {
    value: u64,
    shift: u32,
}

impl Size {
    /// Creates a number whose lowest `shift` bits are already known.
    pub(crate) fn after(value: u64, shift: u32) -> Self {
        Self { value, shift }
    }

    /// Adds the next byte. Returns the number if this byte is its last.
    ///
    /// # Errors
    /// Fails if the number exceeds 64 bits, which git refuses too.
    pub(crate) fn push(&mut self, byte: u8) -> Result<Option<u64>, TooLong> {
        let bits = u64::from(byte & 0x7f);
        let moved = bits.checked_shl(self.shift).filter(|moved| moved >> self.shift == bits);
        self.value |= moved.ok_or(TooLong)?;
        self.shift += 7;
        Ok((byte & 0x80 == 0).then_some(self.value))
    }
}

/// The distance in bytes between a delta and its base. The highest bits come first. One is added to the value before
/// each further byte.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Distance(Option<u64>);

impl Distance {
    /// Adds the next byte. Returns the distance if this byte is its last.
    ///
    /// # Errors
    /// Fails if the distance exceeds 64 bits.
    pub(crate) fn push(&mut self, byte: u8) -> Result<Option<u64>, TooLong> {
        let bits = u64::from(byte & 0x7f);
        let value = match self.0 {
            None => bits,
            Some(value) => value
                .checked_add(1)
                .and_then(|value| value.checked_mul(1 << 7))
                .and_then(|value| value.checked_add(bits))
                .ok_or(TooLong)?,
        };
        self.0 = Some(value);
        Ok((byte & 0x80 == 0).then_some(value))
    }
}

/// The error for a number that has more than 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sizes_and_refuses_more_than_64_bits() {
        let size = |bytes: &[u8]| {
            let mut size = Size::default();
            bytes.iter().map(|byte| size.push(*byte)).find(|pushed| *pushed != Ok(None))
        };
        assert_eq!(size(&[5]), Some(Ok(Some(5))));
        assert_eq!(size(&[0x91, 0x2e]), Some(Ok(Some(5905))));
        assert_eq!(size(&[[0xff; 9].as_slice(), &[1]].concat()), Some(Ok(Some(u64::MAX))));
        assert_eq!(size(&[[0xff; 9].as_slice(), &[2]].concat()), Some(Err(TooLong)));
        // Zeros beyond 64 bits are refused as well: their shift does not fit.
        assert_eq!(size(&[0x80; 11]), Some(Err(TooLong)));
        assert_eq!(size(&[0x80]), None);
    }

    #[test]
    fn parses_distances() {
        let distance = |bytes: &[u8]| {
            let mut distance = Distance::default();
            bytes.iter().map(|byte| distance.push(*byte)).find(|pushed| *pushed != Ok(None))
        };
        assert_eq!(distance(&[5]), Some(Ok(Some(5))));
        // As in git's `packfile.c`: ((0 + 1) << 7) + 0.
        assert_eq!(distance(&[0x80, 0]), Some(Ok(Some(128))));
        assert_eq!(distance(&[0xff; 12]), Some(Err(TooLong)));
    }
}
