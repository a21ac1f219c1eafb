//! The attention block of one layer: project, rotate, remember, attend.

use toko_kernels::attention::{Query, attend};
use toko_kernels::norm::rms_norm_in_place;
use toko_kernels::swiglu::add_in_place;

use crate::decoder::{Model, Slot};
use crate::scratch::Place;
use crate::weights::Layer;
use crate::{KvCache, Scratch};

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

    /// One task for each token and key head; its query heads read keys and values once.
    fn mix(&self, index: usize, slots: &[Slot<'_>], kv: &KvCache, scratch: &mut Scratch) {
        let config = &self.config;
        let chunk = config.group() * config.head_dim;
        let length = scratch.places.len() * config.query_length();
        let head_dim = u16::try_from(config.head_dim).expect("heads are at most 1024 long");
        let scale = 1.0 / f32::from(head_dim).sqrt();
        let (query, places) = (&scratch.query[..length], &scratch.places);
        self.pool.for_each_chunk(
            &mut scratch.mixed[..length],
            chunk,
            &mut scratch.scores,
            |task, out, scores| {
                let (token, head) = (task / config.kv_heads, task % config.kv_heads);
                let Place { slot, position } = places[token];
                let positions = position + 1;
                let pages = kv.head(slots[slot].pages, index, head, positions);
                let values = &query[task * chunk..][..chunk];
                let query = Query { values, head_dim: config.head_dim, scale };
                attend(self.tier, &query, pages, positions, scores, out);
            },
        );
    }
}
