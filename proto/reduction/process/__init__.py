"""What processes of both sides need of their system: descriptors, how to start a reducer, memory that is used again."""
