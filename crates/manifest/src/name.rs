//! Names in manifests.

use bottle_policy::names::Name;

use super::Spanned;
use super::error::Fault;

/// Parses the name of a manifest, skill or repository. `key` is the key that contains the name, for error
/// messages.
pub(super) fn parse_name(key: &str, text: Spanned<String>) -> Result<Spanned<Name>, Fault> {
    let at = text.at;
    text.try_map(|text| Name::try_from(text).map_err(|bad| Fault::new(at, format!("`{key}`: {bad}"))))
}
