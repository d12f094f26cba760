//! The modes: how much the policy allows without asking the user.

use std::fmt;

use thiserror::Error;

/// Determines which commands run without asking the user. The floor, the rules that always deny, applies in each mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Read-only commands run. Everything else asks the user, including file changes through tools.
    BabySitter,
    /// Read-only commands and file changes through tools run. Everything else asks the user.
    Teenager,
    /// Everything that the floor does not deny runs.
    LetItGo,
}

/// A mode, parsed from a name that a user wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModeName {
    /// The mode that has this name.
    pub mode: Mode,
    /// A warning, if the name comes from an older tool in which it has another meaning.
    pub warning: Option<String>,
}

/// The error for a name that is not the name of a mode.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name:?} is not a mode of the command policy: use baby-sitter, teenager or let-it-go{hint}")]
pub struct UnknownMode {
    /// The name as the user wrote it.
    pub name: String,
    hint: String,
}

impl Mode {
    /// All modes, from the strictest to the least strict.
    pub const ALL: [Self; 3] = [Self::BabySitter, Self::Teenager, Self::LetItGo];

    /// The name in settings and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BabySitter => "baby-sitter",
            Self::Teenager => "teenager",
            Self::LetItGo => "let-it-go",
        }
    }

    /// Reads a name. Case does not matter, and a space or `_` means `-`. Names of modes of older tools are accepted. If
    /// the mode of this policy allows more than the older tool's mode, the result has a warning.
    ///
    /// # Errors
    ///
    /// [`UnknownMode`] if no mode has this name: a mistyped name never weakens the policy.
    pub fn parse(name: &str) -> Result<ModeName, UnknownMode> {
        let normal = name.trim().to_lowercase().replace(['_', ' '], "-");
        let (mode, was) = match normal.as_str() {
            "baby-sitter" | "babysitter" | "baby" => (Self::BabySitter, None),
            "teenager" | "teen" => (Self::Teenager, None),
            "let-it-go" | "letitgo" | "letgo" | "yolo" => (Self::LetItGo, None),
            "ask" => (Self::BabySitter, Some("asks before everything that does not only read")),
            "guard" => {
                (Self::LetItGo, Some("runs everything that the floor does not deny, without a question"))
            }
            "allow" => (Self::LetItGo, Some("still has the floor, which no mode can turn off")),
            "readonly" => (
                Self::BabySitter,
                Some("asks before everything that does not only read, instead of denying it"),
            ),
            _ => return Err(UnknownMode { name: name.to_owned(), hint: nearest(&normal) }),
        };
        let warning =
            was.map(|was| format!("the mode {normal} is a legacy name of {}, which {was}", mode.name()));
        Ok(ModeName { mode, warning })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The hint for unknown names that users are likely to try.
fn nearest(name: &str) -> String {
    let mode = match name {
        "read-only" | "ro" | "strict" | "paranoid" => Mode::BabySitter,
        "default" | "normal" | "auto" => Mode::Teenager,
        "none" | "off" | "all" | "full" | "let-go" => Mode::LetItGo,
        _ => return String::new(),
    };
    format!(" (the nearest to it is {mode})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_each_spelling() {
        for (names, mode) in [
            (["baby-sitter", "Baby_Sitter", " babysitter ", "baby"], Mode::BabySitter),
            (["teenager", "TEENAGER", "teen", "Teen "], Mode::Teenager),
            (["let-it-go", "let it go", "letitgo", "yolo"], Mode::LetItGo),
        ] {
            for name in names {
                assert_eq!(Mode::parse(name), Ok(ModeName { mode, warning: None }), "{name}");
            }
            assert_eq!(Mode::parse(mode.name()).map(|named| named.mode), Ok(mode));
        }
    }

    #[test]
    fn legacy_names_warn() {
        for (name, mode) in [
            ("ask", Mode::BabySitter),
            ("guard", Mode::LetItGo),
            ("allow", Mode::LetItGo),
            ("readonly", Mode::BabySitter),
        ] {
            let named = Mode::parse(name).expect("a legacy name");
            assert_eq!(named.mode, mode, "{name}");
            assert!(named.warning.expect("a warning").contains(mode.name()), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_modes() {
        for name in ["", "teenage", "let-it-go!", "none", "read-only"] {
            let error = Mode::parse(name).expect_err(name).to_string();
            assert!(error.contains("baby-sitter, teenager or let-it-go"), "{error}");
        }
        assert!(Mode::parse("read-only").expect_err("unknown").to_string().ends_with("is baby-sitter)"));
    }
}
