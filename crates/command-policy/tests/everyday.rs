//! How often the mode `teenager` asks for everyday commands, and that it allows no dangerous one.

use bottle_command_policy::{Decision, Mode, assess};

/// The commands of a section of `everyday.txt`.
fn section(name: &str) -> Vec<String> {
    let table = include_str!("everyday.txt").split("\n== ").find_map(|section| section.strip_prefix(name));
    let lines = table.unwrap_or_default().lines().skip(1);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("# "))
        .map(|line| line.replace('␤', "\n"))
        .collect()
}

fn is_allowed(command: &str, mode: Mode) -> bool {
    assess(command).decide(mode, &[]) == Decision::Allow
}

/// The commands of a section for which the mode `teenager` asks.
fn asked(section: &[String]) -> Vec<&str> {
    section.iter().map(String::as_str).filter(|command| !is_allowed(command, Mode::Teenager)).collect()
}

#[test]
fn a_teenager_is_asked_for_few_everyday_commands() {
    for (name, count, most) in [("session", 25, 5), ("ordinary", 102, 40)] {
        let commands = section(name);
        assert_eq!(commands.len(), count, "{name}");
        let asked = asked(&commands);
        assert!(asked.len() <= most, "{name}: asks for {} of {count}:\n{}", asked.len(), asked.join("\n"));
    }
}

#[test]
fn no_dangerous_command_is_allowed() {
    let commands = section("dangerous");
    assert!(commands.len() >= 140, "{} commands", commands.len());
    let mut allowed = Vec::new();
    for command in &commands {
        let quoted = shlex::try_quote(command).unwrap_or_default();
        let forms = [command.clone(), format!("ls && {{ {command}\n}}"), format!("bash -c {quoted}")];
        for mode in [Mode::BabySitter, Mode::Teenager] {
            allowed.extend(forms.iter().filter(|form| is_allowed(form, mode)).cloned());
        }
    }
    assert!(
        allowed.is_empty(),
        "{} of {} are allowed:\n{}",
        allowed.len(),
        commands.len(),
        allowed.join("\n")
    );
}
