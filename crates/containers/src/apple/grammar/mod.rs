//! Checks arguments against the grammar of `container` 1.2.2, for tests.
//!
//! The file `container-1.2.2.json` lists the commands, options and positional arguments as the sources of that version
//! declare them. Version 1.2.1 declares the same. Of the later changes that are known up to 1.4.1, none concerns a call of
//! this backend: 1.3.0 removed the value `auto` of `--scheme`, and 1.4.1 added the command `clean`. The check covers the rules on which this backend depends: which options exist, which take a value, the
//! form of the values, exclusive options, and the number of positional arguments.

use std::ffi::OsString;

use serde_json::Value;

/// The grammar.
pub(super) struct Grammar(Value);

impl Grammar {
    /// Reads the grammar from its file.
    pub(super) fn read() -> Self {
        Self(serde_json::from_str(include_str!("container-1.2.2.json")).expect("the grammar"))
    }

    /// Checks the arguments of one call.
    pub(super) fn check(&self, arguments: &[OsString]) -> Result<(), String> {
        let words: Vec<&str> =
            arguments.iter().map(|word| word.to_str().ok_or("not UTF-8")).collect::<Result<_, _>>()?;
        if words == ["--version"] {
            return Ok(());
        }
        let (command, rest) = self.command(&words).ok_or_else(|| format!("no command {words:?}"))?;
        let (mut seen, mut positionals, mut at) = (Vec::new(), Vec::new(), 0);
        let verbatim = command["options_must_precede_positionals"] == true;
        while let Some(word) = rest.get(at) {
            at += 1;
            if !word.starts_with('-') || verbatim && !positionals.is_empty() {
                positionals.push(*word);
                continue;
            }
            let (name, joined) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (*word, None),
            };
            let option = option(command, name).ok_or_else(|| format!("no option {name}"))?;
            let takes_value = option["takes_value"] == true;
            let value = match (takes_value, joined) {
                (false, Some(_)) => return Err(format!("{name} takes no value")),
                (false, None) => None,
                (true, Some(value)) => Some(value),
                (true, None) => {
                    at += 1;
                    let next = rest.get(at - 1).filter(|next| !next.starts_with('-'));
                    Some(*next.ok_or_else(|| format!("{name} needs a value"))?)
                }
            };
            if let Some(value) = value {
                check_value(name, option, value)?;
            }
            if option["repeatable"] == false && seen.iter().any(|(other, _)| *other == name) {
                return Err(format!("{name} occurs twice"));
            }
            seen.push((name, value));
        }
        check_constraints(command, &seen, !positionals.is_empty())?;
        check_positionals(command, positionals.len())
    }

    /// Returns the command that the first words name, and the words after the command's name.
    fn command<'a, 'b>(&'a self, words: &'b [&'b str]) -> Option<(&'a Value, &'b [&'b str])> {
        (1..=words.len().min(3)).rev().find_map(|count| {
            let command = self.0.get(words[..count].join(" "))?;
            (command["is_group"] == false).then_some((command, &words[count..]))
        })
    }
}

fn option<'a>(command: &'a Value, name: &str) -> Option<&'a Value> {
    command["options"].as_array()?.iter().find(|option| {
        let aliases = option["long_aliases"].as_array().into_iter().flatten();
        [&option["long"], &option["short"]].into_iter().chain(aliases).any(|own| own == name)
    })
}

/// Checks a value by the option's name, because the grammar describes most forms of values only in words.
fn check_value(name: &str, option: &Value, value: &str) -> Result<(), String> {
    if let Some(values) = option["values"].as_array()
        && !values.iter().any(|one| one == value)
    {
        return Err(format!("{name} is one of {values:?}"));
    }
    let expect =
        |fits: bool, what: &str| fits.then_some(()).ok_or_else(|| format!("{name}={value} is not {what}"));
    match name {
        // The grammar describes the form as `^[a-zA-Z0-9][a-zA-Z0-9_.-]+$`.
        "--name" => {
            let begins = value.starts_with(|c: char| c.is_ascii_alphanumeric());
            let fits = value.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
            expect(begins && fits && (2..=63).contains(&value.len()), "a name")
        }
        "--cpus" | "-n" => expect(value.parse::<u32>().is_ok(), "an integer"),
        "--memory" => {
            let mib = value.strip_suffix('M').and_then(|number| number.parse::<u64>().ok());
            expect(mib.is_some(), "a size")?;
            expect(mib.is_some_and(|mib| mib >= 200), "at least 200 MiB")
        }
        "--shm-size" => {
            let fits = value
                .strip_suffix('M')
                .is_some_and(|number| number.parse::<u64>().is_ok_and(|size| size > 0));
            expect(fits, "a size")
        }
        "--mount" => {
            let part = |name: &str| value.split(',').find_map(|part| part.strip_prefix(&format!("{name}=")));
            let sized = part("size").is_some_and(|size| size.parse::<u64>().is_ok_and(|size| size > 0));
            let placed = part("destination").is_some_and(|path| path.starts_with('/'));
            expect(part("type") == Some("tmpfs") && placed && sized, "a mount in memory")
        }
        "--label" => expect(value.matches('=').count() == 1, "a key and a value with one `=`"),
        "--workdir" => expect(value.starts_with('/'), "an absolute path"),
        "--ulimit" => {
            let kinds = ["core", "nproc"];
            let numbers = |limits: &str| limits.split(':').all(|number| number.parse::<u64>().is_ok());
            let fits =
                value.split_once('=').is_some_and(|(kind, limits)| kinds.contains(&kind) && numbers(limits));
            expect(fits, "a limit")
        }
        "--publish-socket" => {
            let fits = value.split(':').count() == 2 && value.split(':').all(|path| path.starts_with('/'));
            expect(fits, "two absolute paths with one colon")
        }
        "--volume" => {
            let parts: Vec<&str> = value.split(':').collect();
            let fits = (2..=3).contains(&parts.len()) && parts[1].starts_with('/');
            expect(fits && parts.get(2).is_none_or(|mode| *mode == "ro"), "a mount")
        }
        "--platform" => expect(value.split('/').count() == 2, "a platform"),
        "--user" => expect(value.split(':').all(|id| id.parse::<u32>().is_ok()), "a user"),
        "--build-arg" => expect(value.contains('='), "a key and a value"),
        _ => expect(!value.is_empty(), "empty"),
    }
}

fn check_constraints(
    command: &Value,
    seen: &[(&str, Option<&str>)],
    positionals: bool,
) -> Result<(), String> {
    let has = |name: &str| seen.iter().any(|(other, _)| *other == name);
    for constraint in command["constraints"].as_array().into_iter().flatten() {
        let words: Vec<&str> =
            constraint.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match words[..] {
            ["conflicts", one, other] if has(one) && has(other) => {
                return Err(format!("{one} conflicts with {other}"));
            }
            ["exactly_one_of", option, _] if has(option) == positionals => {
                return Err(format!("either {option} or names"));
            }
            ["value_exclusive", option, value]
                if seen.contains(&(option, Some(value)))
                    && seen.iter().filter(|(other, _)| *other == option).count() > 1 =>
            {
                return Err(format!("{option}={value} must be alone"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_positionals(command: &Value, count: usize) -> Result<(), String> {
    let listed = command["positionals"].as_array().cloned().unwrap_or_default();
    if let Some(missing) = listed.iter().filter(|one| one["required"] == true).nth(count) {
        return Err(format!("{} is missing", missing["name"].as_str().unwrap_or_default()));
    }
    let variadic = listed.iter().any(|one| one["variadic"] == true);
    if count > listed.len() && !variadic {
        return Err("there are too many arguments".to_owned());
    }
    Ok(())
}
