//! Tests `settings.yml`.

use anyhow::Result;

use crate::home::{home, snapshot, transcript};

#[test]
fn reports_a_bad_setting_with_its_position() -> Result<()> {
    let home = home()?;
    let mut text = String::new();
    for settings in [
        "detach-keys: none\n",
        "detach_keys: hyper-x\n",
        "keep_days: 0\n",
        "supervise: {token_timeout: soon}\n",
        "supervise: {git_timeout: 25h}\n",
        "supervise: {notify: []}\n",
        "supervise: {notify: {a: b}}\n",
        "supervise: {call_wait: 5m}\n",
        "docker: {subnets: 10.0.0.0/28}\n",
        "logs: {keep: lots}\n",
        "backend: [linux]\n",
        "backend: linux\nbackend: fake\n",
    ] {
        home.write("home/.bottle/settings.yml", settings)?;
        text += &format!("settings.yml: {settings:?}\n{}\n", transcript(&home, &["start", "hi"])?);
    }
    snapshot!(text);
    Ok(())
}
