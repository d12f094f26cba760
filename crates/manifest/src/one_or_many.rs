//! Deserializes two kinds of value that serde does not support directly: one string or a list of strings, and
//! maps in the order of the file.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use super::Spanned;

/// A string, or a list of strings.
#[derive(Debug)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<Spanned<String>>),
}

impl OneOrMany {
    /// Returns the one string or the list of strings as a list.
    pub(super) fn into_list(this: Spanned<Self>) -> Vec<Spanned<String>> {
        match this.value {
            Self::One(only) => vec![Spanned::new(only, this.at)],
            Self::Many(list) => list,
        }
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamesVisitor;

        impl<'de> Visitor<'de> for NamesVisitor {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a list of names")
            }

            fn visit_str<E>(self, only: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany::One(only.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OneOrMany, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(OneOrMany::Many(list))
            }
        }

        deserializer.deserialize_any(NamesVisitor)
    }
}

/// A map with arbitrary keys, in the order of the file.
#[derive(Debug)]
pub(super) struct Entries<T>(pub(super) Vec<(Spanned<String>, Spanned<T>)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}
