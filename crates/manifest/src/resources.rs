//! The key `resources` of one layer, which is a bottle manifest before the merge: limits and their units.

use std::fmt;

use bottle_host::byte_size::{BadSize, ByteSize};
use serde::{Serialize, Serializer};

use super::Spanned;
use super::error::Fault;
use super::schema::ResourcesSchema;

/// The largest number of processors that a manifest may set. No machine has this many processors, so a larger number is
/// a typing error.
const MAX_CPUS: f64 = 4096.0;
/// The largest number of processes that a manifest may set, which is the kernel's limit.
const MAX_PIDS: u64 = 4_194_304;

/// The key `resources` of one layer. An absent field inherits its value from earlier layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourcesLayer {
    /// The maximum number of processors that the bottle's processes may use together.
    pub cpus: Option<Spanned<Cpus>>,
    /// The maximum memory that the bottle's processes may use together.
    pub memory: Option<Spanned<ByteSize>>,
    /// The maximum number of the bottle's processes and threads.
    pub pids: Option<Spanned<u64>>,
    /// The maximum total size of the files that the bottle writes.
    pub disk: Option<Spanned<ByteSize>>,
    /// Whether processes in the bottle may create user namespaces.
    pub nested: Option<Spanned<bool>>,
}

impl ResourcesLayer {
    pub(super) fn from_schema(schema: ResourcesSchema) -> Result<Self, Fault> {
        let ResourcesSchema { cpus, memory, pids, disk, nested } = schema;
        Ok(Self {
            cpus: cpus.map(processors).transpose()?,
            memory: memory.map(|text| size("memory", &text)).transpose()?,
            pids: pids.map(processes).transpose()?,
            disk: disk.map(|text| size("disk", &text)).transpose()?,
            nested,
        })
    }
}

fn processors(number: Spanned<f64>) -> Result<Spanned<Cpus>, Fault> {
    let at = number.at;
    number.try_map(|n| {
        if (0.01..=MAX_CPUS).contains(&n) {
            // The number is in range, so the conversion cannot overflow. Fractions of a thousandth are
            // rounded intentionally.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Ok(Cpus((n * 1000.0).round() as u32))
        } else {
            Err(Fault::new(at, format!("`resources.cpus` must be between 0.01 and {MAX_CPUS}")))
        }
    })
}

fn processes(number: Spanned<u64>) -> Result<Spanned<u64>, Fault> {
    if (1..=MAX_PIDS).contains(&number.value) {
        Ok(number)
    } else {
        Err(Fault::new(number.at, format!("`resources.pids` must be between 1 and {MAX_PIDS}")))
    }
}

fn size(key: &str, text: &Spanned<String>) -> Result<Spanned<ByteSize>, Fault> {
    let size = text.value.parse().map_err(|error: BadSize| {
        Fault::new(text.at, format!("`resources.{key}` {error}"))
            .hint("for example `512MiB` or `4GiB`; `K`, `M`, `G` and `T` are short for the same units")
    })?;
    Ok(Spanned::new(size, text.at))
}

/// A number of processors, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(pub u32);

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1000, self.0 % 1000);
        if rest == 0 {
            write!(f, "{whole}")
        } else {
            write!(f, "{}", format!("{whole}.{rest:03}").trim_end_matches('0'))
        }
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_processors_without_trailing_zeros() {
        for (thousandths, text) in [(2000, "2"), (1500, "1.5"), (250, "0.25"), (10, "0.01")] {
            assert_eq!(Cpus(thousandths).to_string(), text);
        }
    }
}
