//! The fields of a form or of an address. Their number is limited.

use std::borrow::Cow;

/// The maximum number of fields.
const MAX_FIELDS: usize = 16;

/// Fields by name. If a name appears twice, the first field is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    /// Parses `application/x-www-form-urlencoded` text. Ignores fields beyond [`MAX_FIELDS`].
    pub(super) fn parse(text: &[u8]) -> Self {
        let owned = |(name, value): (Cow<'_, str>, Cow<'_, str>)| (name.into_owned(), value.into_owned());
        Self(url::form_urlencoded::parse(text).take(MAX_FIELDS).map(owned).collect())
    }

    /// Returns the value of a field, without spaces at its ends. Returns `None` if the field is missing or empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// Returns the value of a field of several lines, with the line breaks of a file. Returns `None` if the field is
    /// missing or empty.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.replace("\r\n", "\n")).filter(|value| !value.trim().is_empty())
    }
}

/// Formats fields as the query of an address.
pub(super) fn query(fields: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_field_of_a_name_counts() {
        let form = Form::parse(b"a=1&b=x%20y+z&a=2&c=&d");
        assert_eq!(
            (form.get("a"), form.get("b"), form.get("c"), form.get("d")),
            (Some("1"), Some("x y z"), None, None)
        );
        let lines = Form::parse(b"a=%20-%20x%0D%0A%20%20y%0D%0A&b=%0D%0A");
        assert_eq!((lines.text("a").as_deref(), lines.text("b")), (Some(" - x\n  y\n"), None));
        let many: String = (0..100).map(|at| format!("f{at}=1&")).collect();
        assert_eq!(Form::parse(many.as_bytes()).get("f50"), None);
        assert_eq!(query(&[("scope", "run:a b"), ("x", "&")]), "scope=run%3Aa+b&x=%26");
    }
}
