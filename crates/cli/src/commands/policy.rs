//! `toko policy`: how much memory models may take: what holds, what it would mean, and another choice.

use std::path::PathBuf;

use serde::Serialize;
use toko_admission::{
    concierge,
    decision::Holder,
    policy::{EffectiveBudget, Profile},
    policy_file::{FILE_NAME, Source},
    steward::Steward,
    units::Bytes,
};

use crate::{
    args::policy::{
        ConciergeArgs, ConciergeWish, PolicyCommand, PreviewArgs, SetPolicyArgs, ShowPolicyArgs,
    },
    commands::{explain::explain, simulate::simulate},
    memory,
    output::{Output, print_json},
    refusal::{holder_line, row},
};

/// Does what one of the subcommands says.
pub(crate) fn policy(command: &PolicyCommand, output: Output) -> anyhow::Result<()> {
    match command {
        PolicyCommand::Show(args) => show(args, output),
        PolicyCommand::Set(args) => set(args, output),
        PolicyCommand::Preview(args) => preview(args, output),
        PolicyCommand::Explain(args) => explain(args, output),
        PolicyCommand::Simulate(args) => simulate(args, output),
        PolicyCommand::Concierge(args) => switch(args, output),
    }
}

/// The policy in force, and how it came to be.
#[derive(Debug, Serialize)]
struct Shown {
    policy: String,
    profile: Profile,
    custom_max_model_mb: Option<u64>,
    source: Source,
    warning: Option<String>,
    file: PathBuf,
    budget: EffectiveBudget,
    concierge: Concierge,
}

/// What was chosen automatically, and whether anything may be.
#[derive(Debug, Serialize)]
struct Concierge {
    is_on: bool,
    choice: Option<Choice>,
}

/// An automatic choice that holds.
#[derive(Debug, Serialize)]
struct Choice {
    #[serde(flatten)]
    choice: concierge::Choice,
    undo: &'static str,
}

impl Shown {
    fn of(steward: &Steward) -> Self {
        let root = &steward.settings().state_root;
        let loaded = steward.policy();
        let marked = concierge::choice(root);
        let is_automatic = !concierge::user_chose(&loaded, marked.as_ref().map(|it| &it.policy));
        let choice = marked.filter(|_| is_automatic).map(|choice| {
            let undo = match choice.policy.profile {
                Profile::LocalFocused => "toko policy set everyday",
                Profile::Everyday | Profile::Custom => "toko policy set local-focused",
            };
            Choice { choice, undo }
        });
        Self {
            policy: loaded.policy.to_string(),
            profile: loaded.policy.profile,
            custom_max_model_mb: loaded.policy.custom_max_model_mb,
            source: loaded.source,
            warning: loaded.warning,
            file: root.join(FILE_NAME),
            budget: steward.preview(&loaded.policy, None),
            concierge: Concierge { is_on: !concierge::history(root).is_off, choice },
        }
    }

    fn print(&self, output: Output) -> anyhow::Result<()> {
        let line = |name: &str, value: &str| output.line(&format!("{name:<18} {value}"));
        line("policy", &self.policy)?;
        let because = match self.source {
            Source::Loaded => "the file says so",
            Source::MissingDefault => "the default: nothing was chosen",
            Source::CorruptDefault => "the strictest: the file cannot be understood",
            Source::LastGood => "the last one that was understood; the file cannot be",
        };
        line("because", because)?;
        line("file", &self.file.display().to_string())?;
        if let Some(warning) = &self.warning {
            line("warning", warning)?;
        }
        if let Some(Choice { choice, undo }) = &self.concierge.choice {
            line("chosen for you", &format!("{}; to undo it: {undo}", choice.reason))?;
        }
        if !self.concierge.is_on {
            line("automatic choice", "off")?;
        }
        print_budget(&self.budget, output)
    }
}

fn show(args: &ShowPolicyArgs, output: Output) -> anyhow::Result<()> {
    let shown = Shown::of(&memory::look_on("policy", None));
    if args.json { print_json(&shown) } else { shown.print(output) }
}

fn preview(args: &PreviewArgs, output: Output) -> anyhow::Result<()> {
    let budget = match args.total_memory_mb {
        // Numbers alone: nothing of this machine is looked at.
        Some(total) => args.policy.effective_budget(total),
        None => memory::look_on("policy", None).preview(&args.policy, None),
    };
    if args.json { print_json(&budget) } else { print_budget(&budget, output) }
}

fn print_budget(budget: &EffectiveBudget, output: Output) -> anyhow::Result<()> {
    let line =
        |name: &str, mb: u64, about: &str| output.line(&row(name, Bytes::from_mib(mb), about));
    line("memory", budget.total_memory_mb, "")?;
    line("for models", budget.effective_new_load_ceiling_mb, "all of them together")?;
    line("stays free", budget.emergency_reserve_mb, "")?;
    match &budget.normalization_notice {
        Some(notice) => Ok(output.line(notice)?),
        None => Ok(()),
    }
}

/// What a change of the policy does.
#[derive(Debug, Serialize)]
struct Effect {
    before: String,
    after: String,
    is_saved: bool,
    budget_before: EffectiveBudget,
    budget_after: EffectiveBudget,
    charged_bytes: Bytes,
    /// Who would have to go before anything else is loaded.
    no_longer_fit: Vec<Holder>,
}

fn set(args: &SetPolicyArgs, output: Output) -> anyhow::Result<()> {
    let steward = memory::look_on("policy", None);
    let (before, after) = (steward.policy().policy, args.policy);
    let memory = steward.memory(&[]);
    let budget_after = steward.preview(&after, None);
    let effect = Effect {
        before: before.to_string(),
        after: after.to_string(),
        is_saved: !args.preview,
        budget_before: steward.preview(&before, None),
        no_longer_fit: no_longer_fit(
            &memory.holders,
            memory.charged_bytes,
            budget_after.new_load_ceiling(),
        ),
        charged_bytes: memory.charged_bytes,
        budget_after,
    };
    if !args.preview {
        steward.set_policy(&after)?;
    }
    if args.json { print_json(&effect) } else { print_effect(&effect, output) }
}

fn print_effect(effect: &Effect, output: Output) -> anyhow::Result<()> {
    let Effect { before, after, budget_before, budget_after, .. } = effect;
    let verb = if effect.is_saved { "is" } else { "would be" };
    output.line(&format!(
        "The policy {verb} {after}; it {} {before}.",
        if effect.is_saved { "was" } else { "is" }
    ))?;
    let (old, new) = (budget_before.new_load_ceiling(), budget_after.new_load_ceiling());
    output.line(&row("for models", new, &format!("before: {old}")))?;
    output.line(&row("in use by models", effect.charged_bytes, ""))?;
    if let Some(notice) = &budget_after.normalization_notice {
        output.line(notice)?;
    }
    if !effect.no_longer_fit.is_empty() {
        output.line("Loaded models stay. These would have to go before another one is loaded:")?;
        for holder in &effect.no_longer_fit {
            output.line(&holder_line(holder))?;
        }
    }
    Ok(())
}

/// Returns who would have to go until the rest is within a ceiling: first who was not used for longest.
fn no_longer_fit(holders: &[Holder], charged: Bytes, ceiling: Bytes) -> Vec<Holder> {
    let mut holders = holders.to_vec();
    holders.sort_by_key(|holder| {
        (holder.is_pinned, std::cmp::Reverse(holder.idle_seconds.unwrap_or(0)))
    });
    let mut over = charged.left_after(ceiling);
    let mut going = Vec::new();
    for holder in holders {
        if over == Bytes::ZERO {
            break;
        }
        over = over.left_after(holder.bytes);
        going.push(holder);
    }
    going
}

fn switch(args: &ConciergeArgs, output: Output) -> anyhow::Result<()> {
    let steward = memory::look_on("policy", None);
    let root = &steward.settings().state_root;
    match args.wish {
        ConciergeWish::On => concierge::switch_on(root)?,
        ConciergeWish::Off => concierge::switch_off(root)?,
    };
    output.line(match args.wish {
        ConciergeWish::On => "The policy may be raised automatically.",
        ConciergeWish::Off => "The policy stays as it is until you change it.",
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use toko_admission::{decision::Holder, units::Bytes};

    use super::no_longer_fit;

    fn holder(model: &str, mib: u64, idle_seconds: Option<u64>, is_pinned: bool) -> Holder {
        Holder {
            process: "toko serve, process 1".to_owned(),
            model: model.to_owned(),
            bytes: Bytes::from_mib(mib),
            state: "resident".to_owned(),
            idle_seconds,
            is_pinned,
        }
    }

    #[test]
    fn who_was_unused_for_longest_goes_first_and_no_more_go_than_must() {
        let holders = [
            holder("fresh", 300, Some(1), false),
            holder("pinned", 300, Some(900), true),
            holder("old", 100, Some(800), false),
            holder("busy", 300, None, false),
        ];
        let going = |ceiling| {
            let ceiling = Bytes::from_mib(ceiling);
            let going = no_longer_fit(&holders, Bytes::from_mib(1000), ceiling);
            going.into_iter().map(|holder| holder.model).collect::<Vec<_>>()
        };
        assert!(going(1000).is_empty());
        assert_eq!(going(999), ["old"]);
        assert_eq!(going(900), ["old"]);
        assert_eq!(going(899), ["old", "fresh"]);
        assert_eq!(going(0), ["old", "fresh", "busy", "pinned"]);
    }
}
