//! The attention block of one layer: project, rotate, remember, attend.

use toko_kernels::attention::{PART, Queries, attend, attend_part, finish, merge, state_length};
use toko_kernels::norm::rms_norm_in_place;
use toko_kernels::swiglu::add_in_place;

use crate::decoder::{Model, Slot};
use crate::scratch::{part_length, tile_tokens};
use crate::weights::Layer;
use crate::{KvCache, PAGE_TOKENS, Scratch};

impl Model {
    /// Fills `scratch.mixed` with the attention of `scratch.normed` over all cached positions,
    /// this pass's included.
    pub(crate) fn attend_layer(
        &self,
        index: usize,
        slots: &[Slot<'_>],
        kv: &mut KvCache,
        scratch: &mut Scratch,
    ) {
        let layer = &self.tensors.layers[index];
        let tokens = scratch.places.len();
        self.project(layer, tokens, scratch);
        self.rotate(tokens, scratch);
        let kv_length = self.config.kv_length();
        let rows = scratch.key.chunks_exact(kv_length).zip(scratch.value.chunks_exact(kv_length));
        for (place, (keys, values)) in scratch.places.iter().zip(rows) {
            let table = slots[place.slot].pages;
            kv.store(self.tier, table, index, place.position, keys, values);
        }
        self.mix(index, slots, kv, scratch);
    }

    /// Q, K and V with their biases and head norms.
    fn project(&self, layer: &Layer, tokens: usize, scratch: &mut Scratch) {
        let config = &self.config;
        let (query_length, kv_length) = (config.query_length(), config.kv_length());
        let query = &mut scratch.query[..tokens * query_length];
        let key = &mut scratch.key[..tokens * kv_length];
        let value = &mut scratch.value[..tokens * kv_length];
        let normed = &scratch.normed[..tokens * config.hidden];
        self.product(
            [&layer.query, &layer.key, &layer.value],
            normed,
            &mut scratch.quantized,
            [&mut *query, &mut *key, &mut *value],
        );
        if let Some([query_bias, key_bias, value_bias]) = &layer.biases {
            for (rows, bias) in
                [(&mut *query, query_bias), (&mut *key, key_bias), (value, value_bias)]
            {
                for row in rows.chunks_exact_mut(bias.len()) {
                    add_in_place(self.tier, row, bias);
                }
            }
        }
        if let Some([query_norm, key_norm]) = &layer.head_norms {
            rms_norm_in_place(self.tier, query, query_norm, config.norm_epsilon);
            rms_norm_in_place(self.tier, key, key_norm, config.norm_epsilon);
        }
    }

    fn rotate(&self, tokens: usize, scratch: &mut Scratch) {
        let config = &self.config;
        let angles = scratch.angles.chunks_exact(config.rope.rotary_dims).take(tokens);
        let queries = scratch.query.chunks_exact_mut(config.query_length());
        let keys = scratch.key.chunks_exact_mut(config.kv_length());
        for ((angles, query), key) in angles.zip(queries).zip(keys) {
            for head in query.chunks_exact_mut(config.head_dim) {
                self.rope.rotate(self.tier, angles, head);
            }
            for head in key.chunks_exact_mut(config.head_dim) {
                self.rope.rotate(self.tier, angles, head);
            }
        }
    }

    /// Tokens that decode are cut by positions, prompts by tokens; what they get is the same.
    fn mix(&self, index: usize, slots: &[Slot<'_>], kv: &KvCache, scratch: &mut Scratch) {
        let (mut first, mut rest) = (0, slots);
        while let Some(slot) = rest.first() {
            let singles = rest.iter().take_while(|slot| slot.tokens.len() == 1).count();
            let (now, later) = rest.split_at(singles.max(1));
            if singles > 0 {
                self.mix_parts(index, now, first, kv, scratch);
            } else {
                self.mix_tiles(index, slot, first, kv, scratch);
            }
            first += now.iter().map(|slot| slot.tokens.len()).sum::<usize>();
            rest = later;
        }
    }

    /// One task for some tokens of a prompt, of which `first` is the place in the pass.
    fn mix_tiles(
        &self,
        index: usize,
        slot: &Slot<'_>,
        first: usize,
        kv: &KvCache,
        scratch: &mut Scratch,
    ) {
        let config = &self.config;
        let width = config.query_length();
        let tokens = slot.tokens.len();
        let length = state_length(config.head_dim) * config.group();
        // Several tiles a thread, so that none waits long for the others.
        let tile = tokens.div_ceil(4 * self.pool.threads()).clamp(1, tile_tokens(config));
        let queries = &scratch.query[first * width..][..tokens * width];
        let mixed = &mut scratch.mixed[first * width..][..tokens * width];
        self.pool.for_each_chunk(mixed, tile * width, &mut scratch.states, |i, out, states| {
            let queries = &queries[i * tile * width..];
            let tokens = out.len() / width;
            let states = &mut states[..2 * tokens * length];
            for head in 0..config.kv_heads {
                let at = head * config.group() * config.head_dim;
                let position = slot.start + i * tile;
                let queries = Queries { tokens, ..self.queries(&queries[at..], position) };
                let pages = kv.head(slot.pages, index, head, 0);
                attend(self.tier, &queries, pages, states, &mut out[at..]);
            }
        });
    }

    /// One task for each sequence, part of its positions, and KV head. Each slot is one token, the
    /// first of them at the place `first` in the pass.
    fn mix_parts(
        &self,
        index: usize,
        slots: &[Slot<'_>],
        mut first: usize,
        kv: &KvCache,
        scratch: &mut Scratch,
    ) {
        let config = &self.config;
        let length = part_length(config);
        let room = scratch.parts.len() / length;
        let mut rest = slots;
        while !rest.is_empty() {
            // As many sequences as there is room for; the longest fits alone.
            let (mut count, mut parts) = (0, 0);
            while let Some(slot) = rest.get(count).filter(|slot| parts + parts_of(slot) <= room) {
                parts += parts_of(slot);
                count += 1;
            }
            let (now, later) = rest.split_at(count);
            let chunk = length / config.kv_heads;
            let query = &scratch.query[first * config.query_length()..];
            self.pool.for_each_chunk(
                &mut scratch.parts[..parts * length],
                chunk,
                &mut scratch.states,
                |task, states, _| {
                    let head = task % config.kv_heads;
                    let (slot, part) = locate(now, task / config.kv_heads);
                    let at = slot * config.query_length() + head * config.group() * config.head_dim;
                    let queries = self.queries(&query[at..], now[slot].start);
                    let pages = kv.head(now[slot].pages, index, head, part * PART / PAGE_TOKENS);
                    attend_part(self.tier, &queries, part, pages, states);
                },
            );
            self.merge_parts(now, first, scratch);
            first += count;
            rest = later;
        }
    }

    fn merge_parts(&self, slots: &[Slot<'_>], first: usize, scratch: &mut Scratch) {
        let config = &self.config;
        let length = part_length(config);
        let mixed =
            scratch.mixed[first * config.query_length()..].chunks_mut(config.query_length());
        let mut parts = &mut scratch.parts[..];
        for (slot, out) in slots.iter().zip(mixed) {
            let (whole, rest) = parts.split_at_mut(length);
            let (others, rest) = rest.split_at_mut((parts_of(slot) - 1) * length);
            for part in others.chunks(length) {
                merge(self.tier, config.head_dim, part, whole);
            }
            let states = whole.chunks(state_length(config.head_dim));
            for (state, out) in states.zip(out.chunks_mut(config.head_dim)) {
                finish(state, out);
            }
            parts = rest;
        }
    }

    /// Returns one token's queries at one KV head.
    fn queries<'a>(&self, values: &'a [f32], position: usize) -> Queries<'a> {
        let head_dim = u16::try_from(self.config.head_dim).expect("heads are at most 1024 long");
        Queries {
            values,
            stride: self.config.query_length(),
            tokens: 1,
            group: self.config.group(),
            head_dim: self.config.head_dim,
            scale: 1.0 / f32::from(head_dim).sqrt(),
            position,
        }
    }
}

/// Returns how many parts the positions of a token are in, its own included.
fn parts_of(slot: &Slot<'_>) -> usize {
    (slot.start + 1).div_ceil(PART)
}

/// Returns the slot and the part of it that the part `index` of all slots is.
fn locate(slots: &[Slot<'_>], mut index: usize) -> (usize, usize) {
    for (slot, parts) in slots.iter().map(parts_of).enumerate() {
        if index < parts {
            return (slot, index);
        }
        index -= parts;
    }
    unreachable!("a task is a part of a slot")
}
