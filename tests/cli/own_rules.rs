//! Tests the user's own scanner rules and sensitive variables: valid ones are applied, and invalid ones are
//! reported.

use anyhow::Result;

use crate::home::{bottle, home, run, snapshot, transcript};

const ACME: &str =
    "title = 'ours'\n\n[[rules]]\nid = 'acme'\nregex = 'acme-[0-9]{8}'\nkeywords = ['acme-']\n";

#[test]
fn a_bad_rules_file_is_reported_with_its_line_and_starts_nothing() -> Result<()> {
    let home = home()?;
    home.write("home/.bottle/rules/a.toml", ACME)?;
    let mut text = String::new();
    for rules in [
        "[[rules]]\nid = 'x'\nregex = '(['\n",
        "[[rules]\n",
        "[[rules]]\nid = 'x'\nregex = 'x'\nsecretGroup = 2\n",
        ACME,
    ] {
        home.write("home/.bottle/rules/b.toml", rules)?;
        text += &format!("b.toml: {rules:?}\n{}\n", transcript(&home, &["start", "hi"])?);
        assert!(!home.bottle_home().join("state").exists(), "{text}");
    }
    std::fs::write(home.bottle_home().join("rules/b.toml"), [0xff, 0xfe])?;
    text += &format!("no text\n{}\n", transcript(&home, &["start", "hi"])?);
    home.write("home/.bottle/rules/b.toml", &"#\n".repeat(200 << 10))?;
    text += &format!("too long\n{}\n", transcript(&home, &["start", "hi"])?);
    snapshot!(text);
    Ok(())
}

#[test]
fn policy_check_applies_the_users_rules() -> Result<()> {
    let mut home = home()?;
    let routes = "egress: {routes: [{host: api.example.com, dlp: {outbound_on_match: block}}]}";
    let plain = bottle("[echo, hi]");
    home.bottle("wide", &format!("{}{routes}\n---\n", plain.strip_suffix("---\n").unwrap_or_default()))?;
    let ask = ["policy", "check", "GET", "https://api.example.com/?q=acme-12345678", "--agent", "hi"];
    let ask = [&ask[..], &["--bottle", "wide", "--json"]].concat();
    assert_eq!(run(&home, &ask)?.json()?["verdict"], "allow");
    home.write("home/.bottle/rules/acme.toml", ACME)?;
    home.write("home/.bottle/rules/.acme.toml.swp", "no TOML at all [")?;
    home.write("home/.bottle/rules/notes.txt", "no TOML at all [")?;
    let answer = run(&home, &ask)?.json()?;
    assert_eq!((&answer["verdict"], &answer["reason"]), (&"deny".into(), &"secret-found".into()), "{answer}");
    assert!(answer["sentence"].as_str().is_some_and(|words| words.contains("`acme`")), "{answer}");
    Ok(())
}

#[test]
fn doctor_lists_the_rule_files_in_use() -> Result<()> {
    let home = home()?;
    home.write("home/.bottle/rules/acme.toml", &format!("{ACME}[extend]\nuseDefault = true\n"))?;
    let said = run(&home, &["doctor"])?.stderr;
    assert!(said.contains("your own scanner rules: 1, from acme.toml"), "{said}");
    assert!(said.contains("rules/acme.toml: line 7: extend of the file is not known and left out"), "{said}");
    Ok(())
}

#[test]
fn refuses_unusable_prefixes_of_sensitive_variables() -> Result<()> {
    let mut home = home()?;
    home.env("BOTTLE_SENSITIVE_PREFIXES", "AWS_, GH*");
    snapshot!(transcript(&home, &["start", "hi", "--yes"])?);
    Ok(())
}
