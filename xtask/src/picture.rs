//! Draws `docs/demo.svg`, the README's picture of `toko` at work.
//!
//! What it shows is what the command printed just now. The file depends on nothing: no fonts to load, no script.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

const PROMPT: &str = "Tell me a story about a fox";
/// With a seed the picture changes only when the program does.
const SETTINGS: [&str; 2] = ["--seed", "4"];

const COLUMNS: usize = 76;
const LINE_HEIGHT: usize = 20;
const CHARACTER_WIDTH: usize = 9;
const MARGIN: usize = 20;
const BAR_HEIGHT: usize = 32;

/// Runs the command, draws it, and returns the picture's path.
pub(crate) fn draw(root: &Path) -> anyhow::Result<PathBuf> {
    let output = Command::new("cargo")
        .args(["run", "--quiet", "--bin", "toko", "--", "run"])
        .args(SETTINGS)
        .arg(PROMPT)
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("toko failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let answer = String::from_utf8(output.stdout).context("toko printed no UTF-8")?;
    let path = root.join("docs/demo.svg");
    std::fs::create_dir_all(root.join("docs"))?;
    std::fs::write(&path, svg(&format!("toko run {} \"{PROMPT}\"", SETTINGS.join(" ")), &answer))?;
    Ok(path)
}

fn svg(command: &str, answer: &str) -> String {
    let lines = wrap(answer.trim_end());
    let width = COLUMNS * CHARACTER_WIDTH + 2 * MARGIN;
    let height = BAR_HEIGHT + (lines.len() + 3) * LINE_HEIGHT;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{command}</title>
<style>text {{ font: 15px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d8dee9; white-space: pre; }}</style>
<rect width="{width}" height="{height}" rx="8" fill="#1e222a"/>
<circle cx="20" cy="16" r="6" fill="#bf616a"/><circle cx="40" cy="16" r="6" fill="#ebcb8b"/><circle cx="60" cy="16" r="6" fill="#a3be8c"/>
"##,
        command = escape(command)
    );
    let mut baseline = BAR_HEIGHT + LINE_HEIGHT;
    let mut text = |line: &str, before: &str| {
        let line = escape(line);
        writeln!(
            svg,
            r#"<text xml:space="preserve" x="{MARGIN}" y="{baseline}">{before}{line}</text>"#
        )
        .expect("a string takes every write");
        baseline += LINE_HEIGHT;
    };
    text(command, r##"<tspan fill="#a3be8c">$ </tspan>"##);
    for line in &lines {
        text(line, "");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Breaks text at spaces into lines of at most `COLUMNS` characters; a longer word stays whole.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_spaces_and_keep_every_word() {
        let text = "word ".repeat(40) + "\n\nend";
        let lines = wrap(text.trim_end());
        assert!(lines.iter().all(|line| line.len() <= COLUMNS));
        assert_eq!(lines[0], "word ".repeat(15).trim_end());
        assert_eq!(lines[lines.len() - 2..], ["", "end"]);
        assert_eq!(lines.join(" ").split_whitespace().count(), 41);
    }

    #[test]
    fn what_the_program_prints_stays_text_in_the_picture() {
        let picture = svg("a & b", "<script>");
        assert!(picture.contains("&lt;script&gt;"));
        assert!(picture.contains("a &amp; b"));
        assert!(!picture.contains("<script>"));
    }
}
