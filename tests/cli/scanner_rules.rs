//! Tests the user's own scanner rules and sensitive variables: valid rules and variables are applied, and invalid ones
//! are reported.

use anyhow::Result;

use crate::home::{bottle, home, run, snapshot, transcript};

const ACME: &str =
    "title = 'ours'\n\n[[rules]]\nid = 'acme'\nregex = 'acme-[0-9]{8}'\nkeywords = ['acme-']\n";

#[test]
fn a_bad_rules_file_is_reported_with_its_line_and_starts_nothing() -> Result<()> {
    let home = home()?;
    home.write("home/.bottle/rules/a.toml", ACME)?;
    let mut text = String::new();
    for rules in ["[[rules]\n", "rules = 3\n"] {
        home.write("home/.bottle/rules/b.toml", rules)?;
        text += &format!("b.toml: {rules:?}\n{}\n", transcript(&home, &["start", "hi"])?);
        assert!(!home.bottle_home().join("state").exists(), "{text}");
    }
    std::fs::write(home.bottle_home().join("rules/b.toml"), [0xff, 0xfe])?;
    text += &format!("no text\n{}\n", transcript(&home, &["start", "hi"])?);
    home.write("home/.bottle/rules/b.toml", &"#\n".repeat(3 << 20))?;
    text += &format!("too long\n{}\n", transcript(&home, &["start", "hi"])?);
    snapshot!(text);
    Ok(())
}

#[test]
fn an_unusable_rule_is_left_out_with_a_warning() -> Result<()> {
    let mut home = home()?;
    let routes = "egress: {routes: [{host: api.example.com, dlp: {outbound_on_match: block}}]}";
    let plain = bottle("[echo, hi]");
    home.bottle("wide", &format!("{}{routes}\n---\n", plain.strip_suffix("---\n").unwrap_or_default()))?;
    home.write("home/.bottle/rules/a.toml", ACME)?;
    let bad = [
        "[[rules]]\nid = 'look-ahead'\nregex = 'x(?!y)'\n",
        "[[rules]]\nid = 'no-group'\nregex = 'x'\nsecretGroup = 2\n",
        ACME.strip_prefix("title = 'ours'\n\n").unwrap_or_default(),
        // The rule has braces in the form in which gitleaks' own configuration has them.
        "[[rules]]\nid = 'braces'\nregex = 'braces-(?:[0-9]{4}|{[0-9]+})'\n",
    ];
    home.write("home/.bottle/rules/b.toml", &bad.concat())?;
    for (query, verdict) in [("braces-1234", "deny"), ("acme-12345678", "deny"), ("xz", "allow")] {
        let url = format!("https://api.example.com/?q={query}");
        let ask = ["policy", "check", "GET", &url, "--agent", "hi", "--bottle", "wide", "--json"];
        let answer = run(&home, &ask)?;
        assert_eq!(answer.json()?["verdict"], verdict, "{query}");
        for warning in [
            "rules/b.toml: line 3: rule \"look-ahead\" is left out: its regex cannot be used: look-around",
            "rules/b.toml: line 7: rule \"no-group\" is left out: its secretGroup must be the number of a group",
            "rules/b.toml: line 8: rule \"acme\" is left out: it is there already, a.toml",
        ] {
            let said = answer.stderr.replace("\\\"", "\"");
            assert!(said.contains(warning), "{warning}: {said}");
        }
    }
    let said = run(&home, &["start", "hi", "--dry-run"])?.stderr;
    assert!(said.contains("rule \"look-ahead\" is left out"), "{said}");
    Ok(())
}

#[test]
fn a_rule_file_extends_one_elsewhere() -> Result<()> {
    let home = home()?;
    home.write("home/company/base.toml", &format!("{ACME}[[rules]]\nid = 'noisy'\nregex = '[a-z]+'\n"))?;
    let ours = "[extend]\npath = '../../company/base.toml'\ndisabledRules = ['noisy']\n";
    home.write("home/.bottle/rules/ours.toml", ours)?;
    let said = run(&home, &["doctor"])?.stderr;
    assert!(said.contains("your own scanner rules: 1, from ours.toml, ../../company/base.toml"), "{said}");
    home.write("home/.bottle/rules/ours.toml", &ours.replace("base", "none"))?;
    let said = run(&home, &["doctor"])?.stderr;
    assert!(said.contains("company/none.toml"), "{said}");
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
    home.write("home/.bottle/rules/acme.toml", &format!("{ACME}score = 2\n[extend]\nuseDefault = true\n"))?;
    let said = run(&home, &["doctor"])?.stderr;
    assert!(said.contains("your own scanner rules: 1, from acme.toml"), "{said}");
    assert!(
        said.contains("rules/acme.toml: line 7: score of rule \"acme\" is not known and left out"),
        "{said}"
    );
    let extend =
        "rules/acme.toml: line 8: extend is left out: useDefault needs the default rules of gitleaks";
    assert!(said.contains(extend), "{said}");
    Ok(())
}

#[test]
fn refuses_unusable_prefixes_of_sensitive_variables() -> Result<()> {
    let mut home = home()?;
    home.env("BOTTLE_SENSITIVE_PREFIXES", "AWS_, GH*");
    snapshot!(transcript(&home, &["start", "hi", "--yes"])?);
    Ok(())
}
